//! `duckpond ducks adopt`: rows of the description from what ducks announce.

use std::path::Path;
use std::time::Duration;

use flock::remote::{Found, discover};
use pond::{Duck, Mac, Pond, Port, Size};

use super::lock::Lock;
use super::{DucksError, open};
use crate::cli::AdoptArgs;
use crate::error::Error;
use crate::netboot::service::images;
use crate::output::{self, say};

/// Runs the command.
///
/// # Errors
/// A faulty description, links that cannot be opened, a file that cannot be written.
pub fn run(args: &AdoptArgs, file: Option<&Path>) -> Result<(), Error> {
    let mut description = match (file, args.link.is_empty()) {
        (Some(file), true) => Pond::read(file)?,
        (None, false) => of_links(&args.link)?,
        (Some(_), false) => return Err(DucksError::PondOrLink.into()),
        (None, true) => return Err(DucksError::NoPond.into()),
    };
    if let Some(key) = description.secret_key().ok().flatten()
        && let Err(error @ DucksError::Held { .. }) = Lock::try_once(&key.public())
    {
        // It has the ports; `duckpond ducks` shows whom it has heard of.
        return Err(error.into());
    }
    // Whoever boots while this runs is answered, known or not; unless the images are still to be made.
    let images = images(&description).unwrap_or_else(|error| {
        say(format_args!("nobody can boot over the network yet: {error}"));
        None
    });
    let mut ports = open::links(&description, images.as_ref(), true)?;
    let wait = Duration::from_secs_f64(args.wait);
    let found: Vec<Vec<Found>> = std::thread::scope(|scope| {
        let looks: Vec<_> = ports.iter_mut().map(|port| scope.spawn(move || discover(port, wait))).collect();
        looks.into_iter().map(|look| look.join().unwrap_or_default()).collect()
    });
    if file.is_none() && found.iter().all(Vec::is_empty) {
        return Err(DucksError::NobodyThere.into());
    }
    let known = description.ducks.len();
    let remarks = adopt(&mut description, &found);
    remarks.iter().for_each(say);
    let added = description.ducks.len() - known;
    say(format_args!("{} heard of, {added} new", crate::format::count(found.iter().map(Vec::len).sum(), "duck")));
    match (args.write, file) {
        (true, Some(file)) => {
            if added > 0 {
                append(file, &rows(&description, known))?;
                say(format_args!("added to {}", file.display()));
            }
            Ok(())
        }
        (true, None) => Err(DucksError::NoPond.into()),
        (false, Some(_)) => output::print(&rows(&description, known)).map_err(Error::Output),
        (false, None) => output::print(&description.to_toml()?).map_err(Error::Output),
    }
}

/// A description with these links and no ducks yet.
fn of_links(links: &[String]) -> Result<Pond, Error> {
    let mut description = Pond::new("pond");
    description.key = Some("pond.key".into());
    for (at, text) in links.iter().enumerate() {
        let link = text.parse().map_err(|error: pond::FormError| DucksError::Link {
            port: format!("port-{at}"),
            link: text.clone(),
            reason: error.to_string(),
        })?;
        description.ports.push(Port::new(format!("port-{at}"), link));
    }
    Ok(description)
}

/// Adds a row for each duck that is in none; gives a line for whatever is not as the description says.
fn adopt(description: &mut Pond, found: &[Vec<Found>]) -> Vec<String> {
    let mut remarks = Vec::new();
    for (at, found) in found.iter().enumerate() {
        let port = description.ports[at].name.clone();
        let over_udp = description.ports[at].link.as_str().starts_with("udp:");
        for duck in found {
            let mac = Mac(duck.mac.0);
            let speed = u32::from(duck.announce.link);
            match description.find(&duck.announce.id, mac) {
                None => {
                    let mut row = Duck::new(free_name(description, &duck.name), &port);
                    // Over UDP an address says nothing that the name does not, if the row has the duck's own name.
                    row.mac = (!over_udp || row.name != duck.name).then_some(mac);
                    row.memory = Some(Size(duck.announce.memory));
                    remarks.push(format!("{} ({mac}) on {port}: unknown so far, new row {:?}", duck.name, row.name));
                    description.ducks.push(row);
                }
                Some(row) if row.port != port => remarks.push(format!(
                    "{} ({mac}): found on {port}, but its row says {}: move its cable, or change the row",
                    row.name, row.port
                )),
                Some(row) if row.mac.is_some_and(|known| known != mac) => remarks.push(format!(
                    "{}: answers from {mac}, but its row says {}: was its network card replaced?",
                    row.name,
                    row.mac.expect("just looked at")
                )),
                Some(row) if speed > 0 && speed < row.link => remarks.push(format!(
                    "{}: its link has {speed} Mbit/s instead of {}: check cable, port and switch",
                    row.name, row.link
                )),
                Some(_) => {}
            }
        }
    }
    remarks
}

/// What a duck calls itself, if a row may be called so; else a number.
fn free_name(description: &Pond, wanted: &str) -> String {
    let taken = |name: &str| description.ducks.iter().any(|duck| duck.name == name);
    let fine = wanted.len() <= pond::MAX_NAME
        && !wanted.is_empty()
        && wanted.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fine && !taken(wanted) {
        return wanted.to_owned();
    }
    (1..).map(|n| format!("duck-{n}")).find(|name| !taken(name)).expect("numbers do not end")
}

/// The rows from `first` on, as they stand in a description.
fn rows(description: &Pond, first: usize) -> String {
    let mut text = String::new();
    for duck in &description.ducks[first..] {
        text.push_str("\n[[ducks]]\n");
        text.push_str(&toml::to_string(duck).unwrap_or_default());
    }
    text
}

/// Adds text to a file, which changes as a whole or not at all.
fn append(file: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::from(DucksError::Write { path: file.into(), source });
    let mut whole = std::fs::read_to_string(file).map_err(failed)?;
    if whole.trim_start().starts_with('{') {
        return Err(DucksError::Json { path: file.into() }.into());
    }
    if !whole.ends_with('\n') {
        whole.push('\n');
    }
    whole.push_str(text);
    Pond::from_toml(&whole).map_err(|error| error.in_file(file))?;
    // A link to the file stays one.
    let file = &std::fs::canonicalize(file).map_err(failed)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut fresh = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    std::io::Write::write_all(&mut fresh, whole.as_bytes()).map_err(failed)?;
    let mode = std::fs::metadata(file).map_err(failed)?.permissions();
    fresh.as_file().set_permissions(mode).map_err(failed)?;
    fresh.as_file().sync_all().map_err(failed)?;
    fresh.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}
