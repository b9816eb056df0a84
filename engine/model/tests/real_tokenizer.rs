//! DeepSeek-V3's real tokenizer: 128,815 tokens. It is not in the repository; `scripts/fetch-real-tokenizer` prints the folder that
//! this test reads from `DUCKPOND_REAL_TOKENIZER`:
//!
//! ```sh
//! DUCKPOND_REAL_TOKENIZER="$(scripts/fetch-real-tokenizer)" cargo test -p model --features real-tokenizer
//! ```
//!
//! V3.2 has `<think>` and `</think>` in place of two spare tokens of V3. Where they are missing, this test puts them there.

use std::path::PathBuf;
use std::sync::LazyLock;

use model::chat::{ChatOptions, Message, Piece, ToolCall, chat_ids, encode_chat, prompt_text, template};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

const THINK_ID: u32 = 128_798;

/// The text of tokenizer.json, with the two tokens of V3.2.
static JSON: LazyLock<String> = LazyLock::new(|| {
    let folder = std::env::var_os("DUCKPOND_REAL_TOKENIZER")
        .expect("set DUCKPOND_REAL_TOKENIZER to the folder that scripts/fetch-real-tokenizer prints");
    let path = PathBuf::from(folder).join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let mut json: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{} is not JSON: {error}", path.display()));
    let added = json["added_tokens"].as_array_mut().expect("a list");
    if !added.iter().any(|t| t["content"] == template::THINK) {
        for (id, content) in (THINK_ID..).zip([template::THINK, template::END_THINK]) {
            let spare = added.iter_mut().find(|t| t["id"] == id).expect("V3 has a spare token there");
            spare["content"] = json!(content);
        }
    }
    json.to_string()
});

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(JSON.as_bytes(), "tokenizer.json".as_ref(), None).expect("usable"));

/// The library alone, to compare with.
static LIBRARY: LazyLock<tokenizers::Tokenizer> =
    LazyLock::new(|| tokenizers::Tokenizer::from_bytes(JSON.as_bytes()).expect("usable"));

const TEXTS: [&str; 12] = [
    "104857601是质数吗",
    "The quick brown duck jumps over 13 lazy dogs.\n\n  Indented,\ttabbed.\r\nWindows line.",
    "鸭子在池塘里游泳，今天天气很好。「はい、カモです」と言った。",
    "한국어 텍스트와 русский текст, ελληνικά, עברית, العربية, हिन्दी",
    "🦆👨‍👩‍👧‍👦🇨🇭🏳️‍🌈 e\u{301} ﬁ ½ Ⅷ",
    "fn main() {\n    let x: Vec<_> = (0..10).map(|i| i * 2).collect(); // 乘以二\n}\n",
    "def f(x):\n\treturn x**2 != 3 and not x\n\n\n\n",
    "1234567890 3.14159 1,000,000 ²³ ١٢٣",
    "   leading, trailing   ",
    "a\u{0}b\u{1f}c\u{7f}d\u{200b}e\u{feff}f\u{2028}g",
    "https://example.org/a?b=c&d=%20#e_f don't can't I'll WE'VE",
    "",
];

#[test]
fn short_question_takes_eleven_tokens() {
    let question = [Message::User { content: "104857601是质数吗".to_owned() }];
    for (thinking, last) in [(false, THINK_ID + 1), (true, THINK_ID)] {
        let options = ChatOptions { thinking, ..ChatOptions::default() };
        let pieces = encode_chat(&question, &options).expect("valid");
        let ids = chat_ids(&TOKENIZER, &pieces).expect("the markers are there");
        assert_eq!(ids.len(), 11, "{ids:?}");
        assert_eq!(ids[..2], [0, 128_803]);
        assert_eq!(ids[9..], [128_804, last]);
        assert_eq!(ids, TOKENIZER.encode(&prompt_text(&pieces)).expect("valid text"));
    }
}

#[test]
fn texts_come_back_whole_and_streamed() {
    for text in TEXTS {
        let ids = TOKENIZER.encode(text).expect("valid text");
        assert_eq!(TOKENIZER.encode_plain(text).expect("valid text"), ids, "{text}");
        assert_eq!(TOKENIZER.decode(&ids), text);
        let mut stream = TOKENIZER.detokeniser();
        let mut streamed = String::new();
        for &id in &ids {
            let piece = stream.push(id);
            assert!(!piece.contains('\u{fffd}'), "{text}: {piece}");
            streamed.push_str(&piece);
        }
        assert_eq!(stream.finish(), "");
        assert_eq!(streamed, text);
    }
}

#[test]
fn every_token_has_the_bytes_that_the_library_decodes() {
    assert_eq!(TOKENIZER.vocab_size(), 128_815);
    for id in 0..128_815 {
        assert_eq!(
            String::from_utf8_lossy(TOKENIZER.token_bytes(id)),
            LIBRARY.decode(&[id], false).expect("decodes"),
            "token {id}"
        );
    }
}

#[test]
fn invalid_bytes_stream_as_the_library_decodes_them() {
    let byte_tokens: Vec<u32> = (0..=u8::MAX)
        .map(|byte| {
            let found = (0..128_000).find(|&id| TOKENIZER.token_bytes(id) == [byte]);
            found.unwrap_or_else(|| panic!("no token for byte {byte:#x}"))
        })
        .collect();
    for bytes in [
        &b"ok\xff\xfe then \xe4\xb8 cut, \xf0\x9f\xa6\x86 duck"[..],
        b"\xed\xa0\x80 surrogate, \xc0\x80 overlong, \xf4\x90\x80\x80 too large",
        b"ends inside \xf0\x9f\xa6",
    ] {
        let ids: Vec<u32> = bytes.iter().map(|&b| byte_tokens[b as usize]).collect();
        let mut stream = TOKENIZER.detokeniser();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(stream.finish());
        assert_eq!(text, String::from_utf8_lossy(bytes));
        assert_eq!(text, LIBRARY.decode(&ids, false).expect("decodes"));
    }
}

/// Most of DeepSeek's added tokens, roles among them, are not flagged special: the library's own switch would let them through.
#[test]
fn no_added_token_comes_out_of_plain_text() {
    let added: Vec<u32> = (0..128_815).filter(|&id| TOKENIZER.is_added(id)).collect();
    assert_eq!(added.len(), 818);
    for id in added {
        let name = TOKENIZER.decode(&[id]);
        assert_eq!(TOKENIZER.encode(&name).expect("valid text"), [id]);
        let plain = TOKENIZER.encode_plain(&name).expect("valid text");
        assert!(plain.iter().all(|&id| !TOKENIZER.is_added(id)), "{name}: {plain:?}");
        assert_eq!(TOKENIZER.decode(&plain), name);
    }
}

#[test]
fn pieces_tokenise_as_the_one_string_does() {
    let call = ToolCall {
        name: "weather".to_owned(),
        arguments: serde_json::Map::from_iter([("city".to_owned(), json!("Zürich"))]),
    };
    let messages = [
        Message::System { content: "You are a duck.".to_owned() },
        Message::User { content: "天气怎么样？".to_owned() },
        Message::Assistant {
            reasoning: Some("Let me ask.".to_owned()),
            content: "One moment.".to_owned(),
            tool_calls: vec![call],
        },
        Message::Tool { content: "{\"rain\": true}".to_owned() },
    ];
    let options = ChatOptions {
        thinking: true,
        tools: vec![json!({"type": "function", "function": {"name": "weather", "parameters": {}}})],
        response_format: None,
    };
    let pieces = encode_chat(&messages, &options).expect("valid");
    assert!(pieces.contains(&Piece::Special(template::DSML)));
    assert_eq!(
        chat_ids(&TOKENIZER, &pieces).expect("the markers are there"),
        TOKENIZER.encode(&prompt_text(&pieces)).expect("valid text")
    );
}

/// The splitter's expression needs a look-ahead, so it backtracks, and the library gives up on a text without a word when its engine
/// reports that it went too far. On long runs it must not.
#[test]
fn long_runs_are_split_to_their_end() {
    for run in [" ", "\n", "a", "中", "!", " \n", "9"] {
        let long = run.repeat(100_000 / run.len()) + " The end of 12345 words.";
        let ids = TOKENIZER.encode(&long).expect("valid text");
        assert_eq!(TOKENIZER.decode(&ids), long, "{run:?}");
        let end = TOKENIZER.encode(" end of 12345 words.").expect("valid text");
        assert!(ids.ends_with(&end), "{run:?}: {:?}", &ids[ids.len() - 12..]);
    }
}
