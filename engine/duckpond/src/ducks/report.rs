//! How a pond is, as the control socket tells it and people read it.

use flock::remote::{DuckState, DuckStatus, PondStatus};
use serde::{Deserialize, Serialize};

use crate::format::bytes;

/// One duck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Duck {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: String,
    /// One word.
    pub state: String,
    /// Why it is not ready, if more is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Hardware address.
    pub mac: Option<String>,
    /// Units of every layer that it computes now, and when all are there.
    pub active: u32,
    /// See `active`.
    pub units: u32,
    /// Blocks held, of how many.
    pub resident: u32,
    /// See `resident`.
    pub blocks: u32,
    /// Bytes that it can hold.
    pub memory: u64,
    /// Link in Mbit/s, 0 if unknown.
    pub link: u32,
    /// Steps finished.
    pub steps: u64,
    /// Microseconds of a step, as the host sees it, and as the duck computes.
    pub step_us: u64,
    /// See `step_us`.
    pub busy_us: u64,
    /// Questions and inputs sent again.
    pub retries: u64,
    /// Times that it fell silent.
    pub losses: u64,
    /// Blocks that were damaged.
    pub blocks_wrong: u64,
    /// Degrees.
    pub temperature: Option<f32>,
    /// Its count of throttling.
    pub throttled: u64,
    /// Bytes of blocks sent to it.
    pub load_bytes: u64,
}

/// A duck that nobody expects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stranger {
    /// What it calls itself.
    pub name: String,
    /// Where it was heard.
    pub port: String,
    /// Hardware address.
    pub mac: String,
    /// The port that its row says.
    pub expected_on: Option<String>,
}

/// A pond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Ducks.
    pub ducks: Vec<Duck>,
    /// Others.
    pub strangers: Vec<Stranger>,
    /// Units that the host computes.
    pub host_units: u32,
    /// Version of the plan.
    pub plan: u16,
    /// Nodes taken over in the middle of a step.
    pub take_overs: u64,
}

impl From<&DuckStatus> for Duck {
    fn from(duck: &DuckStatus) -> Duck {
        Duck {
            name: duck.name.clone(),
            port: duck.port.clone(),
            state: duck.state.name().into(),
            note: duck.note.clone(),
            mac: duck.mac.map(|mac| mac.to_string()),
            active: duck.active,
            units: duck.units,
            resident: duck.resident,
            blocks: duck.blocks,
            memory: duck.memory,
            link: duck.link,
            steps: duck.steps,
            step_us: duck.step_time.as_micros() as u64,
            busy_us: duck.busy.as_micros() as u64,
            retries: duck.retries,
            losses: duck.losses,
            blocks_wrong: duck.blocks_wrong,
            temperature: duck.temperature,
            throttled: duck.throttled,
            load_bytes: duck.load_bytes,
        }
    }
}

impl From<&PondStatus> for Report {
    fn from(status: &PondStatus) -> Report {
        let stranger = |stranger: &flock::remote::Stranger| Stranger {
            name: stranger.name.clone(),
            port: stranger.port.clone(),
            mac: stranger.mac.to_string(),
            expected_on: stranger.expected_on.clone(),
        };
        Report {
            ducks: status.ducks.iter().map(Duck::from).collect(),
            strangers: status.strangers.iter().map(stranger).collect(),
            host_units: status.host_units,
            plan: status.plan,
            take_overs: status.take_overs,
        }
    }
}

impl Report {
    /// A table, and a line each for whatever is out of the ordinary. `expected`: link speeds by name, in Mbit/s.
    pub fn table(&self, expected: &dyn Fn(&str) -> Option<u32>) -> String {
        let mut rows = vec![
            ["duck", "port", "state", "units", "memory", "link", "step", "computes", "retries", "°C"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for duck in &self.ducks {
            let state = match duck.state.as_str() {
                "loading" if duck.blocks > 0 => format!("loading {} %", duck.resident * 100 / duck.blocks),
                state => state.to_owned(),
            };
            let units = match duck.active == duck.units {
                true => duck.units.to_string(),
                false => format!("{} of {}", duck.active, duck.units),
            };
            let micros = |us: u64| if us == 0 { "-".to_owned() } else { format!("{us} µs") };
            rows.push(vec![
                duck.name.clone(),
                duck.port.clone(),
                state,
                units,
                if duck.memory == 0 { "-".into() } else { bytes(duck.memory) },
                if duck.link == 0 { "-".into() } else { format!("{} M", duck.link) },
                micros(duck.step_us),
                micros(duck.busy_us),
                duck.retries.to_string(),
                duck.temperature.map_or("-".into(), |t| format!("{t:.0}")),
            ]);
        }
        let mut text = crate::format::columns(&rows);
        for line in self.remarks(expected) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn remarks(&self, expected: &dyn Fn(&str) -> Option<u32>) -> Vec<String> {
        let mut lines = Vec::new();
        let working: Vec<&Duck> = self.ducks.iter().filter(|duck| duck.step_us > 0 && duck.state == "ready").collect();
        if let (Some(slowest), true) = (working.iter().max_by_key(|duck| duck.step_us), working.len() > 1) {
            lines.push(format!("slowest: {} with {} µs a step", slowest.name, slowest.step_us));
        }
        for duck in &self.ducks {
            if !duck.note.is_empty() {
                lines.push(format!("{}: {}", duck.name, duck.note));
            }
            if [DuckState::Silent.name(), DuckState::Late.name()].contains(&duck.state.as_str()) {
                lines.push(format!(
                    "{}: does not answer, others compute for it; is it on, and its duckd running?",
                    duck.name
                ));
            }
            if duck.state == DuckState::Absent.name() {
                lines.push(format!("{}: never heard of on {}; is it on, and plugged in there?", duck.name, duck.port));
            }
            if let Some(want) = expected(&duck.name).filter(|&want| duck.link > 0 && duck.link < want) {
                lines.push(format!(
                    "{}: its link has {} Mbit/s instead of {want}: check cable, port and switch",
                    duck.name, duck.link
                ));
            }
            if duck.throttled > 0 {
                lines.push(format!("{}: throttled {} times: check its cooling", duck.name, duck.throttled));
            }
            if duck.blocks_wrong > 0 {
                let name = &duck.name;
                lines
                    .push(format!("{name}: {} blocks were damaged and sent again: test its memory", duck.blocks_wrong));
            }
        }
        for stranger in &self.strangers {
            lines.push(match &stranger.expected_on {
                Some(port) => format!(
                    "{} ({}): found on {}, but the description says {port}: move it, or change its row",
                    stranger.name, stranger.mac, stranger.port
                ),
                None => format!(
                    "{} ({}): unknown, on {}; `duckpond ducks adopt` makes a row for it",
                    stranger.name, stranger.mac, stranger.port
                ),
            });
        }
        if self.host_units > 0 {
            lines.push(format!("the host computes {} units of every layer itself", self.host_units));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_the_ordinary_gets_a_line() {
        let duck = |name: &str, step_us| Duck {
            name: name.into(),
            port: "left".into(),
            state: "ready".into(),
            units: 8,
            active: 8,
            link: 2500,
            step_us,
            ..Duck::default()
        };
        let mut report = Report { ducks: vec![duck("a", 100), duck("b", 300)], ..Report::default() };
        report.ducks.push(Duck { link: 1000, ..duck("c", 200) });
        report.ducks.push(Duck { state: "absent".into(), step_us: 0, link: 0, ..duck("d", 0) });
        report.ducks.push(Duck { state: "loading".into(), resident: 1, blocks: 4, active: 0, ..duck("e", 0) });
        report.strangers = vec![
            Stranger { name: "x".into(), port: "left".into(), mac: "02:00:00:00:00:09".into(), expected_on: None },
            Stranger {
                name: "c".into(),
                port: "left".into(),
                mac: "02:00:00:00:00:03".into(),
                expected_on: Some("right".into()),
            },
        ];
        report.host_units = 3;
        report.ducks.push(Duck { state: "silent".into(), step_us: 0, ..duck("f", 0) });
        let text = report.table(&|_| Some(2500));
        for part in [
            "slowest: b with 300 µs",
            "c: its link has 1000 Mbit/s instead of 2500",
            "d: never heard of on left",
            "f: does not answer",
            "loading 25 %",
            "0 of 8",
            "x (02:00:00:00:00:09): unknown, on left",
            "found on left, but the description says right",
            "the host computes 3 units",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        let json = serde_json::to_string(&report).expect("plain data");
        assert_eq!(serde_json::from_str::<Report>(&json).expect("what was written"), report);
    }
}
