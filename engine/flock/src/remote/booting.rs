//! Machines that boot behind a port: the port is the engine's alone, so nobody else could answer them.

use std::time::Duration;

use boot::{Event, Service};
use link::Link;

/// Sends what the service has to say now, and tells people what it did. Returns whether there was something to send.
pub(super) fn answer(service: &mut Service, link: &mut dyn Link, now: Duration, port: &str) -> bool {
    while let Some(event) = service.poll_event() {
        match event {
            Event::Failed { .. } | Event::Missing { .. } | Event::Stranger { .. } => tracing::warn!(%port, "{event}"),
            Event::Leased { .. } | Event::Fetched { .. } => tracing::info!(%port, "{event}"),
            _ => tracing::debug!(%port, "{event}"),
        }
    }
    if service.next_deadline(now).is_none_or(|at| at > now) {
        return false;
    }
    let sent = service.transmit(now, &mut *boot::onto(link));
    link.flush();
    sent
}
