//! The routes over an engine that reads for ever.

use std::time::Instant;

use serde_json::json;
use tower::ServiceExt;

use super::*;
use crate::scheduler::Load;
use crate::testing::{broken, reading};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn ask(app: &App, method: &str, path: &str, header: (&str, &str), body: &Value) -> Response {
    let request = Request::builder().method(method).uri(path).header("host", "localhost").header(header.0, header.1);
    let request = request.body(Body::from(body.to_string())).expect("sound");
    routes(app.clone()).oneshot(request).await.expect("infallible")
}

async fn post(app: &App, path: &str, body: &Value) -> Response {
    ask(app, "POST", path, ("content-type", "application/json"), body).await
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

async fn text_of(response: Response) -> String {
    let bytes = response.into_body().collect().await.expect("it ends").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The status, and the field at fault.
async fn refused(app: &App, path: &str, body: &Value) -> (u16, Value) {
    let response = post(app, path, body).await;
    let status = response.status().as_u16();
    let body: Value = serde_json::from_str(&text_of(response).await).expect("JSON");
    (status, body["error"]["param"].clone())
}

#[tokio::test]
async fn a_stream_is_kept_alive_while_a_prompt_is_read_and_no_part_of_it_is_empty() {
    let app = reading(Limits { keep_alive: Duration::from_millis(60), ..Limits::default() });
    // The engine tells of its progress far more often than the stream may be silent.
    let mut body = post(&app, CHAT, &chat(json!({"stream": true}))).await.into_body();
    for _ in 0..3 {
        let frame = timeout(Duration::from_secs(20), body.frame()).await.expect("something comes");
        let bytes = frame.expect("it goes on").expect("no fault").into_data().expect("data");
        assert_eq!(&bytes[..], b": keep-alive\n\n");
    }
}

#[tokio::test]
async fn what_waits_is_late_at_its_time_and_not_at_its_turn() {
    // This one takes the engine, and never lets it go.
    let app = reading(Limits::default());
    let holder = post(&app, CHAT, &chat(json!({"stream": true}))).await;
    let limits = Limits { time: Duration::from_millis(200), ..Limits::default() };
    let (model, scheduler) = (app.model.clone(), app.scheduler.clone());
    let hurried = App::new(Shared {
        model,
        tokenizer: Arc::clone(&app.tokenizer),
        defaults: Defaults::default(),
        limits,
        scheduler,
        metrics: Arc::clone(&app.metrics),
        keys: None,
        guard: Guard::default(),
        grammars: OnceLock::new(),
    });
    let begun = Instant::now();
    let (streams, waits) = (chat(json!({"stream": true})), chat(json!({})));
    let (streamed, whole) = tokio::join!(post(&hurried, CHAT, &streams), post(&hurried, CHAT, &waits));
    assert_eq!(whole.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(text_of(whole).await.contains("\"code\":\"timeout\""));
    let text = timeout(Duration::from_secs(20), text_of(streamed)).await.expect("it ends at its time");
    assert!(text.contains("\"code\":\"timeout\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let load = app.scheduler.load();
    assert_eq!((load.waiting, load.running), (0, 1));
    let page = app.metrics.text(&load, &app.scheduler.pond());
    for line in ["answers_total{reason=\"error\"} 2", "queue_seconds_count 3"] {
        assert!(page.contains(&format!("duckpond_{line}\n")), "{line} is not in\n{page}");
    }
    drop(holder);
}

#[tokio::test]
async fn the_time_is_up_for_what_runs_as_well() {
    let app = reading(Limits { time: Duration::from_millis(100), ..Limits::default() });
    let response = post(&app, CHAT, &chat(json!({"n": 2}))).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    let end = Instant::now() + Duration::from_secs(20);
    while app.scheduler.load() != (Load { percent: 100, ready: true, ..Load::default() }) {
        assert!(Instant::now() < end, "{:?}", app.scheduler.load());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn combinations_that_cannot_be_and_too_many_answers_are_refused() {
    let app = reading(Limits::default());
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let both = |choice: &str| {
        chat(json!({"tools": tool, "response_format": {"type": "json_object"}, "tool_choice": choice, "stream": true}))
    };
    let many = |prompts: usize, n: usize| json!({"prompt": vec!["x"; prompts], "n": n, "stream": true});
    assert_eq!(refused(&app, CHAT, &both("auto")).await, (400, json!("response_format")));
    assert_eq!(refused(&app, COMPLETIONS, &many(65, 2)).await, (400, json!("prompt")));
    assert_eq!(app.scheduler.load().running, 0);
    for (path, body) in [(COMPLETIONS, many(64, 2)), (CHAT, both("none")), (CHAT, both("required"))] {
        assert_eq!(post(&reading(Limits::default()), path, &body).await.status(), StatusCode::OK, "{body}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_before_it_looks_at_a_request_and_large_bodies_are_read_all_the_same() {
    let app = reading(Limits { waiting: 1, ..Limits::default() });
    let large = chat(json!({"n": 0, "padding": "x".repeat(2 * LARGE_BODY)}));
    assert_eq!(refused(&app, CHAT, &large).await, (400, json!("n")));
    let _running = post(&app, CHAT, &chat(json!({"stream": true, "n": 3}))).await;
    assert_eq!(refused(&app, CHAT, &large).await, (429, Value::Null));
}

#[tokio::test]
async fn why_there_is_no_model_is_told_to_those_with_a_key() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "ada secret-of-ada\n").expect("it is ours");
    let keys = Arc::new(Keys::open(file.path()).expect("sound"));
    let app = broken("/srv/model is not there", Some(keys));
    for path in ["/health", "/ready"] {
        for (key, told) in [("Bearer secret-of-ada", true), ("Bearer other", false), ("", false)] {
            let response = ask(&app, "GET", path, ("authorization", key), &Value::Null).await;
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(text_of(response).await.contains("/srv/model"), told, "{path} with {key:?}");
        }
    }
    let response =
        ask(&broken("/srv/model is not there", None), "GET", "/ready", ("accept", "*/*"), &Value::Null).await;
    assert!(text_of(response).await.contains("/srv/model"));
}
