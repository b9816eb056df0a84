//! `duckpond serve` over real sockets, with Duckling.

mod common;
#[path = "common/http.rs"]
mod http;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Scratch, golden};
use http::{Served, head, read_answer};
use serde_json::{Value, json};

const SUM: &str = "What is 1234 + 567?";
/// More than a thousand tokens: long enough to look at it from outside.
const LONG: &str = "9973是质数吗";

fn user(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn an_answer_is_the_models_and_counts_its_tokens() {
    let served = Served::start(&[]);
    let (text, prompt, output) = golden(SUM);
    let answer = served.chat(&user(SUM));
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "duckling");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(output)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    // The last token is always read again.
    let again = served.chat(&user(SUM));
    assert_eq!(again["choices"][0]["message"]["content"], text);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    assert_ne!(answer["id"], again["id"]);
}

#[test]
fn a_stream_is_the_same_answer_in_parts() {
    let served = Served::start(&["--mtp"]);
    let (text, prompt, output) = golden(SUM);
    let body = with(user(SUM), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = served.post("/v1/chat/completions", &body);
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let events = answer.events();
    let (last, parts) = events.split_last().expect("events");
    assert!(parts.iter().all(|part| part["object"] == "chat.completion.chunk" && part["usage"].is_null()));
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    let joined: String = parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(joined, text);
    assert!(parts.len() > output / 2, "it came in {} parts", parts.len());
    assert_eq!(parts.last().expect("parts")["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        (&last["usage"]["prompt_tokens"], &last["usage"]["completion_tokens"]),
        (&json!(prompt), &json!(output))
    );
    let accepted = &last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"];
    assert!(accepted.as_u64().is_some_and(|n| n > 0), "{last}");
}

#[test]
fn plain_completions_go_on_with_a_text() {
    let served = Served::start(&[]);
    let prompt = format!("<｜begin▁of▁sentence｜><｜User｜>{SUM}<｜Assistant｜></think>");
    let body = json!({"prompt": [prompt, prompt], "n": 2, "logprobs": 2});
    let answer = served.post("/v1/completions", &body).json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!(golden(SUM).0)));
    }
    let logprobs = &choices[0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().map(Vec::len), logprobs["text_offset"].as_array().map(Vec::len));
    assert_eq!(logprobs["top_logprobs"][0].as_object().map(serde_json::Map::len), Some(2));
    let tokens = served.post("/tokenize", &json!({"prompt": prompt})).json();
    let by_tokens = served.post("/v1/completions", &json!({"prompt": tokens["tokens"], "echo": true})).json();
    assert_eq!(by_tokens["choices"][0]["text"], prompt + &golden(SUM).0);
    let as_chat = served.post("/tokenize", &user(SUM)).json();
    assert_eq!(as_chat["tokens"], tokens["tokens"]);
}

#[test]
fn stop_strings_and_max_tokens_end_an_answer() {
    let served = Served::start(&[]);
    let (text, ..) = golden(SUM);
    let (before, _) = text.split_once("01").expect("1801 is in it");
    for stop in [json!("01"), json!(["xyz", "01"])] {
        let answer = served.chat(&with(user(SUM), json!({"stop": stop})));
        assert_eq!(answer["choices"][0]["message"]["content"], before);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    for limit in ["max_tokens", "max_completion_tokens"] {
        let answer = served.chat(&with(user(LONG), json!({limit: 3})));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
}

#[test]
fn seeds_and_choices_give_the_same_again() {
    let served = Served::start(&[]);
    let body = with(user("你好"), json!({"n": 3, "seed": 11, "temperature": 3, "max_tokens": 12}));
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().expect("choices");
        choices.iter().map(|choice| choice["message"]["content"].to_string()).collect()
    };
    let first = texts(&served.chat(&body));
    assert_eq!(first, texts(&served.chat(&body)));
    assert!(first[0] != first[1] || first[1] != first[2], "{first:?}");
    // A bias of nothing has the tokens chosen on the host, by the same rules.
    assert_eq!(first, texts(&served.chat(&with(body, json!({"logit_bias": {"300": 0}})))));
}

#[test]
fn log_probabilities_come_with_their_tokens() {
    let served = Served::start(&[]);
    let body = with(user(SUM), json!({"logprobs": true, "top_logprobs": 3}));
    let answer = served.chat(&body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("logprobs");
    let text: String = content[..content.len() - 1].iter().filter_map(|entry| entry["token"].as_str()).collect();
    assert_eq!(text, golden(SUM).0);
    for entry in content {
        // Greedy: the chosen one is the likeliest.
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert!(entry["logprob"].as_f64().is_some_and(|p| p <= 0.0));
    }
    let events = served.post("/v1/chat/completions", &with(body, json!({"stream": true}))).events();
    let streamed: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].get(0)).collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

#[test]
fn penalties_are_openais_and_zero_is_none() {
    let served = Served::start(&["--mtp"]);
    let body = |more: Value| with(with(user(LONG), json!({"max_tokens": 120})), more);
    let content = |more: Value| served.chat(&body(more))["choices"][0]["message"]["content"].clone();
    let plain = content(json!({}));
    assert_eq!(content(json!({"presence_penalty": 0, "frequency_penalty": 0.0})), plain);
    assert_eq!(content(json!({"presence_penalty": null})), plain);
    // Greedy: after some repetitions the likeliest token is another one.
    assert_ne!(content(json!({"frequency_penalty": 2})), plain);
    assert_ne!(content(json!({"frequency_penalty": -2})), plain);
    // Duckling is surer of its next token than a single penalty weighs, but not at a high temperature.
    let warm = |presence: i32| content(json!({"presence_penalty": presence, "temperature": 3, "seed": 7}));
    let zero = content(json!({"temperature": 3, "seed": 7}));
    assert_eq!(warm(0), zero);
    assert_ne!(warm(2), zero);
    assert_ne!(warm(-2), zero);
    for name in ["presence_penalty", "frequency_penalty"] {
        for wrong in [json!(2.01), json!(-2.5), json!("1"), json!([])] {
            let refused = served.post("/v1/chat/completions", &body(json!({name: wrong})));
            assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(name)), "{wrong}");
        }
    }
    // Of one request alone.
    assert_eq!(content(json!({})), plain);
}

#[test]
fn every_series_of_the_dashboard_has_a_family_from_the_start() {
    let page = Served::start(&[]).get("/metrics").body;
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana/duckpond.json");
    let dashboard = std::fs::read_to_string(dashboard).expect("it belongs to the code");
    let rest = dashboard.split("duckpond_").skip(1);
    let names = rest.map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or_default());
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        let family = ["_total", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(page.contains(&format!("\n# TYPE duckpond_{family} ")), "{name} is not in\n{page}");
    }
    for series in [
        "answers_total{reason=\"stop\"} 0",
        "answers_total{reason=\"error\"} 0",
        "output_tokens_total 0",
        "http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 0",
        "take_overs_total 0",
        "duck_steps_total{duck=\"duck-01\",port=\"\"} 0",
    ] {
        assert!(page.contains(&format!("\nduckpond_{series}\n")), "{series} is not in\n{page}");
    }
    assert!(page.ends_with("\n# EOF\n"), "{page}");
}

#[test]
fn reasoning_is_apart_from_the_answer() {
    let served = Served::start(&[]);
    for how in [json!({"thinking": {"type": "enabled"}}), json!({"model": "duckling:thinking"})] {
        let answer = served.chat(&with(user("Is 221 prime?"), how.clone()));
        let message = &answer["choices"][0]["message"];
        assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
        assert!(!message["content"].as_str().is_some_and(|text| text.contains("think")), "{answer}");
        assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
        let body = with(with(user("Is 221 prime?"), how), json!({"stream": true}));
        let events = served.post("/v1/chat/completions", &body).events();
        let joined = |field: &str| -> String {
            events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
        };
        assert_eq!(joined("reasoning_content"), message["reasoning_content"]);
        assert_eq!(joined("content"), message["content"]);
    }
    let plain = served.chat(&user("Is 221 prime?"));
    assert!(plain["choices"][0]["message"].get("reasoning_content").is_none());
}

#[test]
fn a_schema_is_followed_by_a_model_that_knows_no_json() {
    let served = Served::start(&["--mtp"]);
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["prime", "divisor"],
        "properties": {"prime": {"type": "boolean"}, "divisor": {"type": "integer", "minimum": 1, "maximum": 99}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    let answer = served.chat(&with(user("Is 221 prime?"), json!({"response_format": format, "max_tokens": 200})));
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let found: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    assert!(found["prime"].is_boolean() && found["divisor"].as_u64().is_some_and(|n| (1..=99).contains(&n)), "{found}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // Thoughts are free, the answer is not.
    let body = json!({"response_format": format, "thinking": {"type": "enabled"}, "seed": 1, "temperature": 0.5});
    let answer = served.chat(&with(user("Is 221 prime?"), body));
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.starts_with('{')), "{message}");
    let text = message["content"].as_str().expect("a text");
    serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    let refused = served.post(
        "/v1/chat/completions",
        &with(
            user("x"),
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}),
        ),
    );
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("response_format")));
}

#[test]
fn a_required_tool_is_called_and_streams_its_arguments() {
    let served = Served::start(&[]);
    let tool = json!({"type": "function", "function": {"name": "divide", "parameters": {
        "type": "object", "required": ["number", "note"],
        "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9}, "note": {"type": "string"}},
    }}});
    let body = with(
        user("Is 221 prime?"),
        json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "divide"}},
            "logit_bias": {}, "max_tokens": 400, "temperature": 1, "seed": 5}),
    );
    let answer = served.chat(&body);
    let message = &answer["choices"][0]["message"];
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"]["name"], "divide", "{answer}");
    assert!(!message["content"].to_string().contains("DSML"), "{answer}");
    let arguments = call["function"]["arguments"].as_str().expect("a text");
    if answer["choices"][0]["finish_reason"] == "tool_calls" {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
        assert!(arguments["number"].is_u64() && arguments["note"].is_string(), "{arguments}");
    } else {
        // A model that was never taught tools may write a note without an end.
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert!(arguments.starts_with("{\"number\": "), "{arguments}");
    }
    let events = served.post("/v1/chat/completions", &with(body, json!({"stream": true}))).events();
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert_eq!(deltas[0]["function"]["name"], "divide");
    let joined: String = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    assert_eq!(joined, arguments);
    assert!(deltas.len() > 3, "arguments came at once");
}

#[test]
fn faults_have_openais_shape_and_the_right_status() {
    let served = Served::start(&["--max-body", "64KiB"]);
    let post = |path: &str, body: &Value| served.post(path, body);
    let chat = "/v1/chat/completions";
    let long = "prime ".repeat(3000);
    for (answer, status, param, code) in [
        (post(chat, &json!({})), 400, json!("messages"), Value::Null),
        (post(chat, &json!([1])), 400, Value::Null, Value::Null),
        (post(chat, &with(user("x"), json!({"temperature": -1}))), 400, json!("temperature"), Value::Null),
        (post(chat, &with(user("x"), json!({"n": 99}))), 400, json!("n"), Value::Null),
        (post(chat, &with(user("x"), json!({"stop": [""]}))), 400, json!("stop"), Value::Null),
        (post(chat, &with(user("x"), json!({"model": "gpt-9"}))), 404, json!("model"), json!("model_not_found")),
        (post(chat, &user(&long)), 400, json!("messages"), json!("context_length_exceeded")),
        (post("/v1/completions", &json!({"prompt": 7})), 400, json!("prompt"), Value::Null),
        (post("/v1/completions", &json!({"prompt": [99999]})), 400, json!("prompt"), Value::Null),
        (post(chat, &user(&"x".repeat(70_000))), 413, Value::Null, json!("body_too_large")),
        (served.get("/v1/nothing"), 404, Value::Null, json!("not_found")),
        (served.get(chat), 405, Value::Null, json!("method_not_allowed")),
        (served.get("/v1/models/other"), 404, json!("model"), json!("model_not_found")),
    ] {
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"], &error["code"]), (status, &param, &code), "{answer:?}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer:?}");
        assert!(error["type"].is_string(), "{answer:?}");
    }
    let error = post(chat, &user(&long)).json()["error"].clone();
    assert_eq!(error["n_ctx"], 2048);
    assert!(error["n_prompt_tokens"].as_u64() > Some(2048));
}

#[test]
fn what_costs_far_more_than_any_answer_is_refused_at_once() {
    let served = Served::start(&[]);
    let long = "abc 12 ".repeat(600_000);
    let tool = json!([{"type": "function", "function": {"name": "f", "description": long}}]);
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": long}), "prompt"),
        ("/detokenize", json!({"tokens": vec![5; 200_000]}), "tokens"),
        ("/v1/chat/completions", with(user("x"), json!({"tools": tool})), "tools"),
        ("/v1/chat/completions", with(user("x"), schema(json!({"allOf": [{"$ref": "#"}]}))), "response_format"),
        (
            "/v1/chat/completions",
            with(user("x"), schema(json!({"type": "integer", "multipleOf": 999_999_937}))),
            "response_format",
        ),
    ] {
        let refused = served.post(path, &body);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{path}: {error}");
        assert!(!error["message"].as_str().unwrap_or_default().contains("backtrace"), "{error}");
    }
}

#[test]
fn what_kills_another_server_does_not_kill_this_one() {
    let served = Served::start(&[]);
    let chat = "/v1/chat/completions";
    // A port scan.
    for _ in 0..20 {
        drop(served.connect());
    }
    // Half a request line, then nothing.
    served.connect().write_all(b"POST /v1/ch").expect("it reads");
    // Lower-case headers and a body in packets of their own.
    let request = served.request(chat, &user(SUM));
    let mut stream = served.connect();
    stream.set_nodelay(true).expect("a socket");
    for part in request.as_bytes().chunks(40) {
        stream.write_all(part).expect("it reads");
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(read_answer(&mut stream).json()["choices"][0]["message"]["content"], golden(SUM).0);
    // Bodies that are shorter or longer than they say.
    let body = user(SUM).to_string();
    let claim = |length: usize| head("POST", chat, &format!("content-length: {length}\r\n"), served.address) + &body;
    let mut short = served.connect();
    short.write_all(claim(body.len() + 10).as_bytes()).expect("it reads");
    short.shutdown(Shutdown::Write).expect("a socket");
    assert!(matches!(read_answer(&mut short).status, 400 | 0));
    assert_eq!(served.raw(claim(body.len() - 3).as_bytes()).json()["error"]["code"], "invalid_json");
    assert_eq!(served.raw(b"nonsense\r\n\r\n").status, 400);
    let not_a_number = head("POST", chat, "content-length: lots\r\n", served.address);
    assert_eq!(served.raw(not_a_number.as_bytes()).status, 400);
    // What clients really send.
    for body in [
        with(user(SUM), json!({"stop": "xyz", "user": "me", "store": null, "metadata": {}})),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": SUM}]}]}),
    ] {
        assert_eq!(served.chat(&body)["choices"][0]["message"]["content"], golden(SUM).0);
    }
    assert_eq!(served.get("/health").json(), json!({"status": "ok"}));
}

#[test]
fn lists_and_health_do_not_wait_behind_an_answer() {
    let served = Served::start(&[]);
    let mut stream = served.connect();
    let request = served.request("/v1/chat/completions", &with(user(LONG), json!({"stream": true})));
    stream.write_all(request.as_bytes()).expect("it reads");
    served.until("the answer begins", |served| served.metric("duckpond_requests_running") == 1.0);
    for path in ["/v1/models", "/health", "/ready", "/metrics", "/pond", "/", "/openapi.json"] {
        let begun = Instant::now();
        assert_eq!(served.get(path).status, 200, "{path}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{path} took {:?}", begun.elapsed());
    }
    assert_eq!(served.metric("duckpond_requests_running"), 1.0, "the answer was over too soon to prove anything");
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    let served = Served::start(&[]);
    for streaming in [true, false] {
        let mut gone = served.connect();
        let request = served.request("/v1/chat/completions", &with(user(LONG), json!({"stream": streaming})));
        gone.write_all(request.as_bytes()).expect("it reads");
        served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
        drop(gone);
        served.until("its place is free", |served| served.metric("duckpond_requests_running") == 0.0);
    }
    assert_eq!(served.metric("duckpond_answers_total{reason=\"cancelled\"}"), 2.0);
    assert_eq!(served.metric("duckpond_answers_total{reason=\"stop\"}"), 0.0);
}

#[test]
fn a_stream_that_waits_is_kept_alive() {
    let served = Served::start(&["--keep-alive", "1"]);
    let mut busy = served.connect();
    let long = with(user(LONG), json!({"stream": true, "n": 16}));
    busy.write_all(served.request("/v1/chat/completions", &long).as_bytes()).expect("it reads");
    served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
    let mut stream = served.connect();
    let request = served.request("/v1/chat/completions", &with(user(SUM), json!({"stream": true})));
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut seen = String::new();
    let mut bytes = [0; 4096];
    while !seen.contains("\r\n: keep-alive\n\n") {
        let length = stream.read(&mut bytes).expect("a comment comes");
        assert!(length > 0 && !seen.contains("data: "), "{seen}");
        seen += std::str::from_utf8(&bytes[..length]).expect("ASCII");
    }
    // Once it is alone, it gets its answer.
    drop(busy);
    assert!(read_answer(&mut stream).head.contains("data: {"));
}

#[test]
fn a_full_queue_refuses_and_a_late_answer_is_cut_off() {
    let served = Served::start(&["--max-queue", "1", "--request-timeout", "2"]);
    let request = served.request("/v1/chat/completions", &with(user(LONG), json!({"n": 16})));
    // Sixteen answers, as many as one request wants, in an idle server, and of a thousand tokens each: it has no time for them.
    let mut first = served.connect();
    first.write_all(request.as_bytes()).expect("it reads");
    served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
    let refused = served.post("/v1/chat/completions", &user(SUM));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    let late = read_answer(&mut first);
    assert_eq!((late.status, &late.json()["error"]["code"]), (504, &json!("timeout")), "{late:?}");
    served.until("nothing of it is left", |served| served.metric("duckpond_requests_running") == 0.0);
    assert_eq!(served.metric("duckpond_requests_waiting"), 0.0);
    assert!(served.metric("duckpond_answers_total{reason=\"error\"}") > 0.0);
}

#[test]
fn keys_are_needed_where_there_are_some_and_are_read_again() {
    let scratch = Scratch::new();
    let file = scratch.write("keys", "ada first-secret\n");
    // The server would warn of a file that everybody can read.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let path = file.to_str().expect("UTF-8").to_owned();
    let served = Served::start_in(scratch, &["--api-keys", &path]);
    let with_key = |key: &str| served.get_with("/v1/models", &format!("authorization: Bearer {key}\r\n")).status;
    for open in ["/health", "/ready", "/", "/page.js", "/openapi.json"] {
        assert_eq!(served.get(open).status, 200, "{open}");
    }
    for closed in ["/v1/models", "/metrics", "/pond"] {
        let refused = served.get(closed);
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (401, &json!("invalid_api_key")), "{closed}");
    }
    assert_eq!((with_key("first-secret"), with_key("first-secreT")), (200, 401));
    std::fs::write(&file, "second-secret\n").expect("it can be written");
    common::signal(&served.child, "HUP");
    served.until("the new key holds", |_| with_key("second-secret") == 200);
    assert_eq!(with_key("first-secret"), 401);
}

#[test]
fn strangers_hosts_and_pages_are_refused() {
    let served = Served::start(&["--allow-host", "pond.example", "--allow-origin", "https://chat.example"]);
    let host = |host: &str| {
        served.raw(format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())
    };
    assert_eq!((host("pond.example").status, host("localhost:1").status), (200, 200));
    assert_eq!(host("evil.example").json()["error"]["code"], "host_not_allowed");
    let origin = |origin: &str| served.get_with("/v1/models", &format!("origin: {origin}\r\n"));
    assert_eq!(origin("https://evil.example").status, 403);
    let allowed = origin("https://chat.example");
    assert_eq!(allowed.status, 200);
    assert!(allowed.head.contains("access-control-allow-origin: https://chat.example"), "{}", allowed.head);
}

#[test]
fn an_open_address_without_keys_is_refused_unless_forced() {
    let scratch = Scratch::new();
    let refused = scratch.run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    refused.refused(
        2,
        "cannot serve: 0.0.0.0 can be reached from other machines, and without API keys everybody there could use the model: \
        give a file with --api-keys, or --allow-anyone to force it",
    );
    let forced = Served::start(&["--host", "0.0.0.0", "--allow-anyone"]);
    assert_eq!(forced.get("/health").status, 200);
}

#[test]
fn a_stop_lets_the_running_answer_end_and_refuses_others() {
    let served = Served::start(&[]);
    let mut stream = served.connect();
    let request = served.request("/v1/chat/completions", &user(LONG));
    stream.write_all(request.as_bytes()).expect("it reads");
    served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
    common::signal(&served.child, "TERM");
    served.until("it is stopping", |served| served.get("/ready").status == 503);
    let refused = served.post("/v1/chat/completions", &user(SUM));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("stopping")));
    let answer = read_answer(&mut stream).json();
    assert_eq!(answer["choices"][0]["message"]["content"], golden(LONG).0);
    let mut served = served;
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_stop_lets_every_choice_of_a_running_request_end_and_tells_those_that_wait() {
    let served = Served::start(&[]);
    let mut running = served.connect();
    let three = with(user(LONG), json!({"n": 3, "max_tokens": 400}));
    running.write_all(served.request("/v1/chat/completions", &three).as_bytes()).expect("it reads");
    served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
    let wait = |body: &Value, waiting: f64| {
        let mut stream = served.connect();
        stream.write_all(served.request("/v1/chat/completions", body).as_bytes()).expect("it reads");
        served.until("it waits", |served| served.metric("duckpond_requests_waiting") >= waiting);
        stream
    };
    let mut streaming = wait(&with(user(SUM), json!({"stream": true})), 3.0);
    let mut plain = wait(&user(SUM), 4.0);
    common::signal(&served.child, "TERM");
    // Of this one nothing has gone out.
    let refused = read_answer(&mut plain);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("stopping")));
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    // That one was told 200 when it began to wait, so its fault is an event, and the last.
    let ended = read_answer(&mut streaming);
    assert_eq!(ended.status, 200);
    let events = ended.events();
    let expected = json!({"error": {
        "message": "the server is stopping; try again in a while", "type": "server_error", "param": null, "code": "stopping",
    }});
    assert_eq!(events, [expected], "{ended:?}");
    let answer = read_answer(&mut running).json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 3, "{answer}");
    for choice in choices {
        assert!(choice["message"]["content"].as_str().is_some_and(|text| golden(LONG).0.starts_with(text)), "{choice}");
        assert_eq!(choice["finish_reason"], "length");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 1200);
    let mut served = served;
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_stop_cuts_off_what_takes_too_long() {
    let served = Served::start(&["--grace", "0"]);
    let mut stream = served.connect();
    let request = served.request("/v1/chat/completions", &with(user(LONG), json!({"stream": true})));
    stream.write_all(request.as_bytes()).expect("it reads");
    served.until("it runs", |served| served.metric("duckpond_requests_running") == 1.0);
    let (code, _) = served.end("TERM");
    assert_eq!(code, Some(0));
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"code\":\"stopping\""), "{}", &rest[rest.len().saturating_sub(400)..]);
}

#[test]
fn chat_talks_to_a_server() {
    let served = Served::start(&["--mtp"]);
    let url = format!("http://{}", served.address);
    let scratch = Scratch::new();
    let input = format!("你好\n/reset\n{SUM}\n/stats\n");
    let ran = common::run_with_input(scratch.command(&["chat", "--url", &url]), input.as_bytes());
    // The environment's model plays no part.
    let lines = ran.succeeded();
    assert_eq!(ran.stdout, format!("{}\n{}\n", golden("你好").0, golden(SUM).0));
    assert!(lines.iter().any(|line| line.starts_with("Generation stats: ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("MTP: accepted ")), "{lines:?}");
    let nobody = scratch.run(&["chat", "--url", "http://127.0.0.1:1"]);
    nobody.refused(1, "cannot reach http://127.0.0.1:1: Connection refused (os error 111)");
}

/// Reads a request whole; its body.
fn body_of(stream: &mut TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a request comes") > 0, "it ended too soon");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body comes");
    serde_json::from_slice(&body).unwrap_or_default()
}

#[test]
fn chat_remembers_answers_of_a_server_that_was_asked_to_think_and_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in ["{\"data\": [{\"id\": \"other\"}]}", "Seven.", "Eleven."] {
            let (mut stream, _) = listener.accept().expect("a client comes");
            asked.push(body_of(&mut stream));
            let part = |delta: Value, end: Value| {
                format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}))
            };
            let text = match answer.starts_with('{') {
                true => answer.to_owned(),
                false => {
                    part(json!({"content": answer}), Value::Null) + &part(json!({}), json!("stop")) + "data: [DONE]\n\n"
                }
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).expect("it reads");
        }
        asked
    });
    let input = b"/think on\nA prime?\nAnother?\n";
    let ran = common::run_with_input(Scratch::new().command(&["chat", "--url", &url]), input);
    ran.succeeded();
    assert_eq!(ran.stdout, "Seven.\nEleven.\n");
    let asked = server.join().expect("all three came");
    assert_eq!(asked[2]["thinking"]["type"], "enabled");
    assert_eq!(asked[2]["messages"][1], json!({"role": "assistant", "content": "Seven."}));
}

#[test]
fn generate_asks_a_server() {
    let served = Served::start(&[]);
    let url = format!("http://{}", served.address);
    let scratch = Scratch::new();
    let (text, input, output) = golden(SUM);
    let ran = scratch.run(&["generate", "--url", &url, SUM]);
    let lines = ran.succeeded();
    assert_eq!((ran.stdout.as_str(), lines.len()), (format!("{text}\n").as_str(), 1), "{lines:?}");
    assert!(common::is_stats(lines[0], input, output), "{lines:?}");
    let piped = scratch.run_with_input(&["generate", "--url", &url, "--max-tokens", "2", "-"], SUM.as_bytes());
    assert_eq!(piped.succeeded().last(), Some(&"stopped: --max-tokens 2 reached"));
    assert!(text.starts_with(piped.stdout.trim_end()), "{piped:?}");
    let clash = scratch.run(&["generate", "--url", &url, "--ducks", "2", SUM]);
    assert_eq!((clash.code, clash.stdout.as_str(), clash.stderr.lines().count()), (Some(2), "", 1), "{clash:?}");
    scratch
        .run(&["generate", "--url", "http://127.0.0.1:1", SUM])
        .refused(1, "cannot reach http://127.0.0.1:1: Connection refused (os error 111)");
}

/// A pond of one duck that is not there; the address of the host's port is `port`.
fn lonely_pond(scratch: &Scratch, port: u16) -> String {
    scratch.run(&["key", "new", "pond.key"]).succeeded();
    let text = format!(
        "name = \"lonely\"\nkey = \"pond.key\"\n\n[[ports]]\nname = \"loopback\"\nlink = \"udp:127.0.0.1:{port},127.0.0.1:9\"\n\n\
        [[ducks]]\nname = \"duck-1\"\nport = \"loopback\"\n"
    );
    scratch.write("pond.toml", text).to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_pond_that_a_server_holds_is_refused_with_the_command_that_works() {
    let scratch = Scratch::new();
    let file = lonely_pond(&scratch, 0);
    let runtime = scratch.path("runtime");
    let runtime = runtime.to_str().expect("UTF-8").to_owned();
    // Without a single duck the host computes everything.
    let mut served = Served::start_with(scratch, &["--pond", &file], &[("DUCKPOND_RUNTIME_DIR", &runtime)]);
    assert!(served.said_before_ready.contains("1 of 1 ducks are not there, the host computes for them"));
    assert_eq!(served.chat(&user(SUM))["choices"][0]["message"]["content"], golden(SUM).0);
    assert_eq!(served.get("/ready").status, 200);
    assert_eq!(served.metric("duckpond_port_up{port=\"loopback\"}"), 0.0);
    let url = format!("http://{}", served.address);
    let run = |arguments: &[&str]| common::run(served.scratch.command(arguments).env("DUCKPOND_RUNTIME_DIR", &runtime));
    let refused = run(&["generate", "--pond", &file, SUM]);
    let program = env!("CARGO_BIN_EXE_duckpond");
    refused.refused(
        1,
        &format!(
            "the pond is in use by process {} ({program} serve): have that answer, by `duckpond generate --url {url} PROMPT` or \
            `duckpond chat --url {url}`",
            served.child.id()
        ),
    );
    // What it says is true.
    assert_eq!(run(&["generate", "--url", &url, SUM]).stdout, golden(SUM).0 + "\n");
    common::signal(&served.child, "TERM");
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_server_without_an_engine_ends_with_a_reason_and_tells_systemd() {
    let scratch = Scratch::new();
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it is bound").port();
    let file = lonely_pond(&scratch, port);
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket for a test");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a valid time");
    let mut command = scratch.command(&["serve", "--port", "0", "--pond", &file]);
    command.env("NOTIFY_SOCKET", &path).env("DUCKPOND_RUNTIME_DIR", scratch.path("runtime")).env("DUCKPOND_LOG", "off");
    let ran = common::run(&mut command);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!((ran.code, lines.len()), (Some(1), 2), "{ran:?}");
    assert!(lines[0].starts_with("listening on "), "{ran:?}");
    let reason = lines[1].strip_prefix("duckpond: cannot serve: ").unwrap_or_else(|| panic!("{ran:?}"));
    assert!(reason.starts_with("port loopback (udp:127.0.0.1:"), "{ran:?}");
    let mut last = String::new();
    while last != format!("STATUS=failed: {reason}") {
        let mut bytes = [0; 4096];
        let length =
            socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{error}; last {last:?}, expected {reason:?}"));
        last = String::from_utf8_lossy(&bytes[..length]).trim_end().to_owned();
        assert!(!last.contains("READY=1"), "{last}");
    }
}

#[test]
fn loading_tells_how_far_it_is() {
    let scratch = Scratch::new();
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket for a test");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a valid time");
    let served = Served::start_with(Scratch::new(), &[], &[("NOTIFY_SOCKET", path.to_str().expect("UTF-8"))]);
    let mut percents: Vec<u32> = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("it goes on until it is ready");
        let said = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if said.contains("READY=1") {
            break;
        }
        let percent = said.lines().find_map(|line| line.strip_prefix("STATUS=loading the model: ")?.strip_suffix(" %"));
        percents.push(percent.unwrap_or_else(|| panic!("{said}")).parse().expect("a number"));
        assert!(said.lines().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{said}");
    }
    // The same is told again after ten seconds. There are five layers of eight experts.
    percents.dedup();
    assert!(percents.len() > 10, "{percents:?}");
    assert!(percents.is_sorted_by(|a, b| a < b) && percents.last() == Some(&100), "{percents:?}");
    assert_eq!(served.get("/ready").json()["percent"], 100);
}

#[test]
fn the_description_names_every_route() {
    let served = Served::start(&[]);
    let description = served.get("/openapi.json").json();
    let paths = description["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        let path = path.replace("{model}", "duckling");
        for method in methods.as_object().expect("methods").keys() {
            let answer = match method.as_str() {
                "get" => served.get(&path),
                _ => served.post(&path, &json!({})),
            };
            assert!(!matches!(answer.status, 404 | 405), "{method} {path}: {answer:?}");
            let described = &methods[method]["responses"][answer.status.to_string()];
            assert!(described.is_object(), "{method} {path} does not say that it answers {}", answer.status);
        }
    }
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health", "/ready", "/metrics"]
    {
        assert!(paths.contains_key(path), "{path}");
    }
}

#[test]
fn over_tls_the_same_and_nobody_else_is_trusted() {
    let scratch = Scratch::new();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let certificate = scratch.write("certificate.pem", made.cert.pem());
    let key = scratch.write("key.pem", made.signing_key.serialize_pem());
    let (certificate, key) = (certificate.to_str().expect("UTF-8"), key.to_str().expect("UTF-8"));
    let served = Served::start_in(Scratch::new(), &["--tls-certificate", certificate, "--tls-key", key]);
    let url = format!("https://localhost:{}", served.address.port());
    let chat = |more: &[&str]| {
        let arguments: Vec<&str> = ["chat", "--url", &url].iter().chain(more).copied().collect();
        common::run_with_input(scratch.command(&arguments), format!("{SUM}\n").as_bytes())
    };
    assert_eq!(chat(&["--ca", certificate]).stdout, golden(SUM).0 + "\n");
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let stranger = scratch.write("stranger.pem", stranger.cert.pem());
    let refused = chat(&["--ca", stranger.to_str().expect("UTF-8")]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    assert!(refused.stderr.contains("certificate"), "{refused:?}");
    // Plain HTTP gets nothing, and costs nothing.
    assert_eq!(served.get("/health").status, 0);
    assert_eq!(chat(&["--ca", certificate]).code, Some(0));
    let swapped = scratch.run(&["serve", "--port", "0", "--tls-certificate", key, "--tls-key", certificate]);
    assert_eq!((swapped.code, swapped.stdout.as_str()), (Some(2), ""), "{swapped:?}");
}

#[test]
fn systemd_hears_of_readiness_life_reload_and_stop() {
    let scratch = Scratch::new();
    let path = scratch.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket for a test");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a valid time");
    let hear = |what: &str| {
        let mut heard = String::new();
        while !heard.lines().any(|line| line == what) {
            let mut bytes = [0; 4096];
            let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{what}: {error}; heard:\n{heard}"));
            heard += &String::from_utf8_lossy(&bytes[..length]);
            heard += "\n";
        }
        heard
    };
    let environment = [("NOTIFY_SOCKET", path.to_str().expect("UTF-8")), ("WATCHDOG_USEC", "1200000")];
    let served = Served::start_with(Scratch::new(), &[], &environment);
    let start = hear("READY=1");
    assert!(start.contains("EXTEND_TIMEOUT_USEC=") && start.contains("STATUS=loading the model: "), "{start}");
    // Idle, and while it answers.
    hear("WATCHDOG=1");
    served.chat(&user("9973是质数吗"));
    hear("STATUS=answering, 0 waiting");
    hear("WATCHDOG=1");
    hear("STATUS=idle, 0 waiting");
    common::signal(&served.child, "HUP");
    hear("RELOADING=1");
    hear("READY=1");
    assert_eq!(served.end("TERM").0, Some(0));
    hear("STOPPING=1");
}
