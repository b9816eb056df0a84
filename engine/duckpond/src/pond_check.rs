//! `duckpond pond check`: what a description says, for people.

use std::fmt::Write;
use std::path::Path;

use pond::{Pond, Port};

use crate::error::{Error, one_line};
use crate::format::count;
use crate::output;

/// Runs the command.
///
/// # Errors
/// The first field that is wrong.
pub fn run(file: &Path) -> Result<(), Error> {
    output::print(&text(&Pond::load(file)?)).map_err(Error::Output)
}

fn text(pond: &Pond) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| writeln!(text, "{name:<14}{}", one_line(value)).expect("to a string");
    line("pond", &pond.name);
    if let Some(folder) = pond.model_folder() {
        line("model", &folder.display().to_string());
    }
    if let Some(path) = pond.key_file() {
        line("key", &path.display().to_string());
    }
    if let Some(key) = &pond.public_key {
        line("public key", &pond::hex::encode(&key.0));
    }
    if let Some(isolated) = &pond.isolated {
        let shown: Vec<_> = isolated.iter().map(u16::to_string).collect();
        line("isolated", if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }.as_str());
    }
    if let Some(pages) = &pond.huge_pages {
        line("huge pages", &format!("{} of {}", pages.count, pages.size));
    }
    for port in &pond.ports {
        line("port", &port_text(pond, port));
    }
    line("ducks", &count(pond.ducks.len(), "duck"));
    line("state", "consistent");
    text
}

fn port_text(pond: &Pond, port: &Port) -> String {
    let mut parts = vec![format!("{} on {}", port.name, port.link)];
    parts.extend(port.lcore.map(|lcore| format!("processor {lcore}")));
    parts.extend(port.subnet.map(|subnet| subnet.to_string()));
    parts.push(count(pond.ducks_of(&port.name).count(), "duck"));
    parts.join(", ")
}
