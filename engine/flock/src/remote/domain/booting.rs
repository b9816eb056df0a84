//! Machines of a domain that boot: the port is the engine's alone, so nobody else could answer them.

use wire::Micros;

use super::Domain;

impl Domain {
    /// Sends what the boot service has to say, and tells people what it did. Returns whether there was something.
    pub(super) fn answer_booting(&mut self) -> bool {
        let Some(service) = &mut self.boot else { return false };
        while let Some(event) = service.poll_event() {
            match event {
                boot::Event::Failed { .. } | boot::Event::Missing { .. } | boot::Event::Stranger { .. } => {
                    tracing::warn!(port = %self.name, "{event}");
                }
                boot::Event::Leased { .. } | boot::Event::Fetched { .. } => {
                    tracing::info!(port = %self.name, "{event}")
                }
                _ => tracing::debug!(port = %self.name, "{event}"),
            }
        }
        let now = self.started.elapsed();
        if service.next_deadline(now).is_none_or(|at| at > now) {
            return false;
        }
        let sent = service.transmit(now, &mut *boot::onto(&mut *self.link));
        self.link.flush();
        sent
    }

    /// When there is something to send.
    pub(super) fn booting_at(&self) -> Option<Micros> {
        let at = self.boot.as_ref()?.next_deadline(self.started.elapsed())?;
        Some(Micros::try_from(at.as_micros()).unwrap_or(Micros::MAX))
    }
}
