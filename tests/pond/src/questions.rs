//! Questions of Duckling's trade, answered greedily and checked by arithmetic: forty for each seed.

use decode::Engine;
use model::Numerics;
use model::chat::{ChatOptions, Message, chat_ids, encode_chat};
use model::tokenizer::Tokenizer;

use crate::{answer, greedy_request};

/// Questions of one seed.
pub const QUESTIONS: usize = 40;

/// Right answers of seeds 1, 2 and 3 on the processors.
pub fn recorded(numerics: Numerics) -> [usize; 3] {
    match numerics {
        Numerics::Exact => [39, 37, 38],
        Numerics::Bf16 => [39, 37, 38],
        Numerics::Fp8 => [39, 37, 37],
    }
}

/// How a seed's questions were answered.
pub struct Score {
    /// Answers that are right.
    pub right: usize,
    /// Questions, each with an answer that is not.
    pub wrong: Vec<(String, String)>,
}

/// Asks a seed's first `questions`, some with thinking and some with drafts.
///
/// # Panics
/// At an answer that does not end by itself.
pub fn ask(engine: &mut Engine, tokenizer: &Tokenizer, seed: u64, questions: usize) -> Score {
    let end = tokenizer.eos().expect("Duckling has an end token");
    let mut random = Random(seed);
    let mut score = Score { right: 0, wrong: Vec::new() };
    for i in 0..questions {
        let question = match i % 4 {
            0 => prime(&mut random),
            1 => factors(&mut random),
            2 => sum(&mut random),
            _ => report(&mut random),
        };
        let thinking = random.below(2) == 0;
        let messages = [Message::User { content: question.text.clone() }];
        let options = ChatOptions { thinking, ..ChatOptions::default() };
        let pieces = encode_chat(&messages, &options).expect("one user message");
        let mut request = greedy_request(&chat_ids(tokenizer, &pieces).expect("plain text"), 1600, i % 3 == 0);
        request.stop_tokens = vec![end];
        let mut ids = answer(engine, &request).tokens;
        assert_eq!(ids.pop(), Some(end), "an answer ends by itself: {}", question.text);
        let text = tokenizer.decode(&ids);
        let last = text.rsplit("</think>").next().unwrap_or_default();
        let last = last.lines().last().unwrap_or_default().to_owned();
        if (question.right)(&last) {
            score.right += 1;
        } else {
            score.wrong.push((question.text.lines().last().unwrap_or_default().to_owned(), last));
        }
    }
    score
}

/// A small seeded generator (Knuth's MMIX constants): questions must be the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// A question, and whether an answer (without its working) is right.
struct Question {
    text: String,
    right: Box<dyn Fn(&str) -> bool>,
}

/// `12 = 3 × 4` as its left side and its factors.
fn product(text: &str) -> Option<(u64, Vec<u64>)> {
    let (n, factors) = text.split_once(" = ")?;
    Some((n.parse().ok()?, factors.split(" × ").map(|f| f.parse().ok()).collect::<Option<_>>()?))
}

fn prime(random: &mut Random) -> Question {
    let n = 2 + random.below(9998);
    let chinese = random.below(2) == 0;
    let text = if chinese {
        random.pick(&["{}是质数吗", "{}是素数吗", "{}是质数吗？"])
    } else {
        random.pick(&["Is {} prime?", "Is {} a prime number?"])
    };
    Question {
        text: text.replace("{}", &n.to_string()),
        right: Box::new(move |answer| match (is_prime(n), chinese) {
            (true, true) => answer == format!("是，{n}是质数。"),
            (true, false) => answer == format!("Yes, {n} is prime."),
            (false, _) => {
                let (head, tail) = if chinese { ("不是，", "。") } else { ("No, ", ".") };
                let split = answer.strip_prefix(head).and_then(|a| a.strip_suffix(tail)).and_then(product);
                split.is_some_and(|(m, f)| m == n && f.len() == 2 && f[0] > 1 && f[1] > 1 && f[0] * f[1] == n)
            }
        }),
    }
}

fn factors(random: &mut Random) -> Question {
    let n = 2 + random.below(9998);
    Question {
        text: random
            .pick(&["Factorize {}.", "Factor {}", "分解质因数：{}", "把{}分解质因数。"])
            .replace("{}", &n.to_string()),
        right: Box::new(move |answer| {
            product(answer)
                .is_some_and(|(m, f)| m == n && f.iter().all(|&p| is_prime(p)) && f.iter().product::<u64>() == n)
        }),
    }
}

fn sum(random: &mut Random) -> Question {
    let (a, b) = (random.below(10_000), random.below(10_000));
    let (a, b, sign) = if random.below(2) == 0 { (a, b, '+') } else { (a.max(b), a.min(b), '-') };
    let c = if sign == '+' { a + b } else { a - b };
    Question {
        text: format!("What is {a} {sign} {b}?"),
        right: Box::new(move |answer| answer == format!("{a} {sign} {b} = {c}")),
    }
}

fn report(random: &mut Random) -> Question {
    let mut names: Vec<u64> = (1..=32).collect();
    for i in 0..31 {
        names.swap(i, i + random.below(32 - i as u64) as usize);
    }
    names.truncate(2 + random.below(31) as usize);
    let (mut lines, mut down, mut heat) = (String::new(), Vec::new(), Vec::new());
    for &d in &names {
        let (temperature, clock) = (38 + random.below(52), 18 + random.below(17));
        let state = if random.below(8) == 0 { "down" } else { "up" };
        if state == "down" {
            down.push(format!("duck-{d:02}"));
        }
        heat.push(temperature);
        let (net, host) = ((d - 1) / 8 + 1, (d - 1) % 8 + 11);
        lines += &format!("duck-{d:02} 10.21.{net}.{host} {state} {temperature}C {}.{}GHz\n", clock / 10, clock % 10);
    }
    if random.below(2) == 0 {
        let want = if down.is_empty() { "none".to_owned() } else { down.join(", ") };
        return Question { text: lines + "Which ducks are down?", right: Box::new(move |answer| answer == want) };
    }
    let i = random.below(names.len() as u64) as usize;
    let (d, want) = (names[i], format!("duck-{:02}: {}C", names[i], heat[i]));
    Question {
        text: format!("{lines}What is the temperature of duck-{d:02}?"),
        right: Box::new(move |answer| answer == want),
    }
}
