//! Logs: tracing to standard error, coloured on a terminal only.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::uptime;

use crate::settings::Environment;

/// Whether `text` can be used with [`start`].
pub fn is_filter(text: &str) -> bool {
    !text.trim().is_empty() && EnvFilter::builder().parse(text).is_ok()
}

/// Starts logging. Times are seconds since then.
pub fn start(filter: &str, environment: &Environment) {
    let filter = EnvFilter::builder().parse_lossy(filter);
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(uptime())
        .with_ansi(stderr().is_terminal() && !environment.no_colour())
        // A log that nobody can read any more must not end the program: told on the same stream, the failure would panic.
        .log_internal_errors(false)
        .with_writer(stderr);
    // A second start in one process can only happen in tests; the first one counts.
    let _ = logs.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_told_from_nonsense() {
        for good in ["off", "warn", "debug", "warn,flock=debug"] {
            assert!(is_filter(good), "{good}");
        }
        for bad in ["", " ", "flock=loud", "warn,=,="] {
            assert!(!is_filter(bad), "{bad}");
        }
    }
}
