//! Duckling against Hugging Face transformers: the same prompt ids from the same text, and the same greedy ids, all of them.

use decode::{Engine, EngineOptions};
use model::tokenizer::Tokenizer;
use pond_tests::{answer, duckling_folder, greedy_request, load};

#[test]
fn all_recorded_answers_come_out_token_by_token() {
    let tokenizer = Tokenizer::open(&duckling_folder()).expect("Duckling's tokenizer");
    let mut engine = Engine::new(load(&duckling_folder()), &EngineOptions::default()).expect("good options");
    let cases = golden::duckling_greedy();
    assert_eq!(cases.len(), 18);
    for case in cases {
        let ids = tokenizer.encode(&case.prompt_text).expect("text that the tokenizer knows");
        assert_eq!(ids, case.prompt_ids, "{}: prompt ids", case.name);
        let got = answer(&mut engine, &greedy_request(&ids, case.greedy_ids.len(), false)).tokens;
        assert_eq!(got, case.greedy_ids, "{}: {}", case.name, case.prompt_text);
        engine.reset();
        let drafted = answer(&mut engine, &greedy_request(&ids, case.greedy_ids.len(), true)).tokens;
        assert_eq!(drafted, case.greedy_ids, "{} with drafts", case.name);
    }
}
