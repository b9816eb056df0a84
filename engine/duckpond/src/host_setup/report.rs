//! What was found, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::error::one_line;
use crate::format::count;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Only worth knowing.
    Note,
    /// Works, but slower than it could.
    Warning,
    /// Does not work like this.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Warning => "warning",
            State::Missing => "missing",
        }
    }
}

/// What would make it good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Parameters of the kernel, which counts them from the next start.
    Kernel(String),
    /// A line in a file.
    Line {
        /// Where.
        file: &'static str,
        /// What.
        line: String,
    },
    /// A command, as root.
    Run(String),
    /// Something else.
    Do(String),
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// In a word or two.
    pub name: &'static str,
    /// How good it is.
    pub state: State,
    /// What there is, and what was expected if that is something else.
    pub found: String,
    /// Why that matters; empty if all is well.
    pub why: &'static str,
    /// What to do.
    pub fixes: Vec<Fix>,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Finding {
        Finding { name, state: State::Ok, found: found.into(), why: "", fixes: Vec::new() }
    }

    /// It is not as it should be.
    pub fn new(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        why: &'static str,
        fixes: Vec<Fix>,
    ) -> Finding {
        Finding { name, state, found: found.into(), why, fixes }
    }
}

/// All findings.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
    pond: Option<String>,
    nixos: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    state: State,
    found: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'a str,
    #[serde(rename = "do", skip_serializing_if = "Vec::is_empty")]
    fixes: Vec<String>,
}

#[derive(Serialize)]
struct Whole<'a> {
    pond: Option<&'a str>,
    missing: usize,
    warnings: usize,
    /// What the kernel's command line lacks, in one.
    kernel_parameters: String,
    checks: Vec<Row<'a>>,
}

impl Report {
    /// Of these findings.
    pub fn new(findings: Vec<Finding>, pond: Option<String>, nixos: bool) -> Report {
        Report { findings, pond, nixos }
    }

    fn of(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.state == state).count()
    }

    /// How much is missing that is needed.
    pub fn missing(&self) -> usize {
        self.of(State::Missing)
    }

    /// All parameters that the kernel lacks, each once.
    fn parameters(&self) -> String {
        let mut words: Vec<&str> = Vec::new();
        for fix in self.findings.iter().flat_map(|finding| &finding.fixes) {
            if let Fix::Kernel(parameters) = fix {
                let new: Vec<&str> = parameters.split(' ').filter(|word| !words.contains(word)).collect();
                words.extend(new);
            }
        }
        words.join(" ")
    }

    fn for_kernel(&self, parameters: &str) -> String {
        match self.nixos {
            true => {
                let quoted: Vec<String> = parameters.split(' ').map(|word| format!("{word:?}")).collect();
                format!(
                    "in the configuration: boot.kernelParams = [ {} ]; then nixos-rebuild boot and restart",
                    quoted.join(" ")
                )
            }
            false => format!(
                "at the end of /etc/default/grub: GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameters}\"; then update-grub and restart"
            ),
        }
    }

    fn told(&self, fix: &Fix) -> String {
        match fix {
            Fix::Kernel(parameters) => self.for_kernel(parameters),
            Fix::Line { file, line } => format!("in {file}: {line}"),
            Fix::Run(command) => format!("run: {command}"),
            Fix::Do(what) => what.clone(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: String| writeln!(text, "{}", one_line(&line)).expect("to a string");
        for finding in &self.findings {
            line(format!("{:<9}{:<22}{}", finding.state.name(), finding.name, finding.found));
            if !finding.why.is_empty() {
                line(format!("{:<9}why  {}", "", finding.why));
            }
            for fix in &finding.fixes {
                line(format!("{:<9}do   {}", "", self.told(fix)));
            }
        }
        let parameters = self.parameters();
        if self.findings.iter().filter(|f| f.fixes.iter().any(|fix| matches!(fix, Fix::Kernel(_)))).count() > 1 {
            line(format!("{:<9}{}", "together", self.for_kernel(&parameters)));
        }
        line(self.summary());
        text
    }

    fn summary(&self) -> String {
        let whom = self.pond.as_ref().map_or("a pond without DPDK".to_owned(), |name| format!("the pond {name}"));
        let needed = match self.missing() {
            0 => format!("this machine has what {whom} needs"),
            n => {
                format!("{} that {whom} needs", count(n, "thing") + if n == 1 { " is missing" } else { " are missing" })
            }
        };
        let slow = match self.of(State::Warning) {
            0 => String::new(),
            n => format!("; {} speed", count(n, "thing") + if n == 1 { " costs" } else { " cost" }),
        };
        let nothing_to_do = self.findings.iter().all(|finding| finding.fixes.is_empty());
        let how = match (nothing_to_do, self.nixos) {
            (true, _) => "",
            (false, true) => {
                "; nothing was changed: the module services.duckpond sets all of this, or the lines above do"
            }
            (false, false) => "; nothing was changed: the lines above do it, as root",
        };
        format!("{needed}{slow}{how}")
    }

    /// For programs.
    pub fn json(&self) -> String {
        let checks = self.findings.iter().map(|finding| Row {
            name: finding.name,
            state: finding.state,
            found: &finding.found,
            why: finding.why,
            fixes: finding.fixes.iter().map(|fix| self.told(fix)).collect(),
        });
        let whole = Whole {
            pond: self.pond.as_deref(),
            missing: self.missing(),
            warnings: self.of(State::Warning),
            kernel_parameters: self.parameters(),
            checks: checks.collect(),
        };
        serde_json::to_string_pretty(&whole).expect("texts and numbers") + "\n"
    }
}
