//! Counters and histograms, in Prometheus' text format.
//!
//! Every name begins with `duckpond_`. Figures of ducks and the queue are read when somebody asks for them, all others count as things
//! happen.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::backend::Stats;
use crate::pond::{Build, PondStatus};
use crate::scheduler::Load;

type Decimal = Gauge<f64, AtomicU64>;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildInfo {
    version: String,
    program: String,
    system: String,
    generation: String,
    kernels_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDuck {
    duck: String,
    port: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DuckState {
    duck: String,
    port: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPort {
    port: String,
}

/// Every name begins so.
const PREFIX: &str = "duckpond";
/// The ways in which answers end.
const ENDS: [&str; 5] = ["stop", "length", "tool_calls", "cancelled", "error"];
/// The last line of a page.
const END: &str = "# EOF\n";

/// What is on the page. The encoder leaves out a family without a series; dashboards and alerts want to know of it all the same.
struct Names {
    registry: Registry,
    /// Of families: the name, and the lines before its series.
    heads: Vec<(String, String)>,
}

impl Names {
    fn family<L, M>(&mut self, name: &str, help: &str, family: &Family<L, M>)
    where
        L: EncodeLabelSet + Clone + Eq + Hash + Debug + Send + Sync + 'static,
        M: EncodeMetric + TypedMetric + Debug + Default + Send + Sync + 'static,
    {
        let full = format!("{PREFIX}_{name}");
        let head = format!("# HELP {full} {help}.\n# TYPE {full} {}\n", M::TYPE.as_str());
        self.heads.push((full, head));
        self.registry.register(name, help, family.clone());
    }

    /// Puts the heads of families without a series before the page's end.
    fn add_missing(&self, page: &mut String) {
        let missing = self.heads.iter().filter(|(name, _)| !page.contains(&format!("# TYPE {name} ")));
        let heads: String = missing.map(|(_, head)| head.as_str()).collect();
        let end = page.strip_suffix(END).map_or(page.len(), str::len);
        page.insert_str(end, &heads);
    }
}

/// Everything that is measured.
pub struct Metrics {
    names: Names,
    build: Family<BuildInfo, Gauge>,
    requests: Family<Route, Counter>,
    answers: Family<Ended, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    output_tokens: Counter,
    drafts: Counter,
    accepted: Counter,
    first_token: Histogram,
    token: Histogram,
    queue: Histogram,
    answer: Histogram,
    waiting: Gauge,
    running: Gauge,
    ready: Gauge,
    cache_used: Gauge,
    cache_size: Gauge,
    take_overs: Family<Vec<(String, String)>, Counter>,
    ducks: DuckMetrics,
    ports: PortMetrics,
    /// Held while a page is made: what others count is cleared and set for each.
    page: Mutex<()>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    reason: &'static str,
}

#[derive(Default)]
struct DuckMetrics {
    state: Family<DuckState, Gauge>,
    units: Family<OfDuck, Gauge>,
    active: Family<OfDuck, Gauge>,
    resident: Family<OfDuck, Gauge>,
    blocks: Family<OfDuck, Gauge>,
    step: Family<OfDuck, Decimal>,
    steps: Family<OfDuck, Counter>,
    retries: Family<OfDuck, Counter>,
    losses: Family<OfDuck, Counter>,
    temperature: Family<OfDuck, Decimal>,
    throttled: Family<OfDuck, Counter>,
}

#[derive(Default)]
struct PortMetrics {
    up: Family<OfPort, Gauge>,
    retries: Family<OfPort, Counter>,
    losses: Family<OfPort, Counter>,
}

/// Half a millisecond to a minute and more.
fn seconds() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
        30.0, 60.0, 300.0,
    ])
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Metrics {
        let mut metrics = Metrics {
            names: Names { registry: Registry::with_prefix(PREFIX), heads: Vec::new() },
            build: Family::default(),
            requests: Family::default(),
            answers: Family::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            output_tokens: Counter::default(),
            drafts: Counter::default(),
            accepted: Counter::default(),
            first_token: seconds(),
            token: seconds(),
            queue: seconds(),
            answer: seconds(),
            waiting: Gauge::default(),
            running: Gauge::default(),
            ready: Gauge::default(),
            cache_used: Gauge::default(),
            cache_size: Gauge::default(),
            take_overs: Family::default(),
            ducks: DuckMetrics::default(),
            ports: PortMetrics::default(),
            page: Mutex::new(()),
        };
        metrics.register();
        // What is known to come is there from the start, so that a rate over it begins at zero.
        for reason in ENDS {
            drop(metrics.answers.get_or_create(&Ended { reason }));
        }
        metrics
    }

    /// There is such a route.
    pub fn route(&self, route: &str) {
        drop(self.requests.get_or_create(&Route { route: route.to_owned(), status: 200 }));
    }

    fn register(&mut self) {
        let r = &mut self.names;
        r.family("build_info", "1 for the program that computes, and where it came from", &self.build);
        r.family("http_requests", "HTTP requests answered, by route and status", &self.requests);
        r.family("answers", "Answers, by the way they ended", &self.answers);
        r.registry.register("prompt_tokens", "Prompt tokens", self.prompt_tokens.clone());
        r.registry.register(
            "cached_prompt_tokens",
            "Prompt tokens that were still in the caches",
            self.cached_tokens.clone(),
        );
        r.registry.register("output_tokens", "Tokens generated", self.output_tokens.clone());
        r.registry.register("draft_tokens", "Drafts judged", self.drafts.clone());
        r.registry.register("accepted_draft_tokens", "Drafts that held", self.accepted.clone());
        r.registry.register("time_to_first_token_seconds", "From begin to first token", self.first_token.clone());
        r.registry.register("time_per_token_seconds", "From one token to the next", self.token.clone());
        r.registry.register("queue_seconds", "From request to begin", self.queue.clone());
        r.registry.register("answer_seconds", "From begin to end of an answer", self.answer.clone());
        r.registry.register("requests_waiting", "Answers that wait for their turn", self.waiting.clone());
        r.registry.register("requests_running", "Answers being generated", self.running.clone());
        r.registry.register("ready", "1 once the model is loaded", self.ready.clone());
        r.registry.register(
            "cache_positions_used",
            "Positions in the caches after the latest answer",
            self.cache_used.clone(),
        );
        r.registry.register("cache_positions", "Positions that the caches have", self.cache_size.clone());
        r.family("take_overs", "Steps whose units were taken over from a duck", &self.take_overs);
        let d = &self.ducks;
        r.family("duck_state", "1 for the state that a duck is in", &d.state);
        r.family("duck_units", "Units of a layer that the plan gives a duck", &d.units);
        r.family("duck_active_units", "Units of a layer that a duck computes now", &d.active);
        r.family("duck_resident_blocks", "Blocks of weights that a duck holds", &d.resident);
        r.family("duck_blocks", "Blocks of weights that a duck is to hold", &d.blocks);
        r.family("duck_step_seconds", "Recent mean time of a duck's step", &d.step);
        r.family("duck_steps", "Steps of a duck so far", &d.steps);
        r.family("duck_retries", "Requests repeated to a duck so far", &d.retries);
        r.family("duck_losses", "Times that a duck fell silent so far", &d.losses);
        r.family("duck_temperature_celsius", "Temperature of a duck", &d.temperature);
        r.family("duck_throttled", "How often a duck was slowed down by heat", &d.throttled);
        r.family("port_up", "1 while a port has a link", &self.ports.up);
        r.family("port_retries", "Frames sent or asked for again on a port so far", &self.ports.retries);
        r.family("port_losses", "Times that ducks of a port fell silent so far", &self.ports.losses);
    }

    /// The caches have so many positions.
    pub fn caches(&self, positions: usize) {
        self.cache_size.set(positions as i64);
    }

    /// An HTTP request was answered.
    pub fn request(&self, route: &str, status: u16) {
        self.requests.get_or_create(&Route { route: route.to_owned(), status }).inc();
    }

    /// An answer begins after it has waited so long.
    pub fn begun(&self, waited: Duration) {
        self.queue.observe(waited.as_secs_f64());
    }

    /// An answer that waited so long will never begin.
    pub fn never_begun(&self, reason: &'static str, waited: Duration) {
        self.begun(waited);
        self.answers.get_or_create(&Ended { reason }).inc();
    }

    /// A token came so long after the one before, or after the begin.
    pub fn token(&self, first: bool, after: Duration) {
        if first { &self.first_token } else { &self.token }.observe(after.as_secs_f64());
        self.output_tokens.inc();
    }

    /// An answer ended.
    pub fn ended(&self, reason: &'static str, stats: &Stats, took: Duration) {
        self.answers.get_or_create(&Ended { reason }).inc();
        self.answer.observe(took.as_secs_f64());
        self.cache_used.set((stats.prompt + stats.output) as i64);
        for (counter, more) in [
            (&self.prompt_tokens, stats.prompt),
            (&self.cached_tokens, stats.cached),
            (&self.drafts, stats.drafts),
            (&self.accepted, stats.accepted),
        ] {
            counter.inc_by(more as u64);
        }
    }

    /// The page that Prometheus reads, with the state of now.
    pub fn text(&self, load: &Load, pond: &PondStatus) -> String {
        let _page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.set(load.waiting as i64);
        self.running.set(load.running as i64);
        self.ready.set(i64::from(load.ready));
        self.build.clear();
        if let Some(Build { version, program, system, generation, kernels_hash }) = pond.build.clone() {
            let generation = generation.map(|number| number.to_string()).unwrap_or_default();
            self.build.get_or_create(&BuildInfo { version, program, system, generation, kernels_hash }).set(1);
        }
        self.take_overs.clear();
        set(&self.take_overs, &Vec::new(), pond.take_overs);
        self.ducks.set(pond);
        self.ports.set(pond);
        let mut page = String::new();
        // Writing to a string fails only where a metric's own encoder does, and none does.
        let _ = text::encode(&mut page, &self.names.registry);
        self.names.add_missing(&mut page);
        page
    }
}

/// Counts that somebody else keeps are put into a family that was cleared.
fn set<L: Clone + Hash + Eq>(family: &Family<L, Counter>, labels: &L, value: u64) {
    family.get_or_create(labels).inc_by(value);
}

impl DuckMetrics {
    fn set(&self, pond: &PondStatus) {
        // Ducks and states that are gone must not stay.
        self.state.clear();
        for family in [&self.units, &self.active, &self.resident, &self.blocks] {
            family.clear();
        }
        for family in [&self.steps, &self.retries, &self.losses, &self.throttled] {
            family.clear();
        }
        self.step.clear();
        self.temperature.clear();
        for duck in &pond.ducks {
            let of = OfDuck { duck: duck.name.clone(), port: duck.port.clone() };
            let state = DuckState { duck: of.duck.clone(), port: of.port.clone(), state: duck.state.clone() };
            self.state.get_or_create(&state).set(1);
            for (family, value) in [
                (&self.units, duck.units),
                (&self.active, duck.active),
                (&self.resident, duck.resident),
                (&self.blocks, duck.blocks),
            ] {
                family.get_or_create(&of).set(value as i64);
            }
            for (family, value) in [
                (&self.steps, duck.steps),
                (&self.retries, duck.retries),
                (&self.losses, duck.losses),
                (&self.throttled, duck.throttled),
            ] {
                set(family, &of, value);
            }
            self.step.get_or_create(&of).set(duck.step_us * 1e-6);
            if let Some(temperature) = duck.temperature {
                self.temperature.get_or_create(&of).set(f64::from(temperature));
            }
        }
    }
}

impl PortMetrics {
    fn set(&self, pond: &PondStatus) {
        self.up.clear();
        self.retries.clear();
        self.losses.clear();
        for port in &pond.ports {
            let of = OfPort { port: port.name.clone() };
            self.up.get_or_create(&of).set(i64::from(port.state == "up"));
            set(&self.retries, &of, port.retries);
            set(&self.losses, &of, port.losses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pond::Duck;

    #[test]
    fn a_page_has_what_was_counted_and_no_duck_that_is_gone() {
        let metrics = Metrics::new();
        metrics.request("/health", 200);
        metrics.token(true, Duration::from_millis(3));
        metrics.ended("stop", &Stats { prompt: 7, cached: 2, ..Stats::default() }, Duration::from_millis(9));
        let load = Load { waiting: 3, running: 1, ready: true, ..Load::default() };
        let duck =
            Duck { name: "duck-01".into(), state: "ready".into(), step_us: 250.0, retries: 5, ..Duck::default() };
        let build = Some(Build { version: "0.1.0".into(), generation: Some(42), ..Build::default() });
        let pond = PondStatus { build, ducks: vec![duck], take_overs: 2, ..PondStatus::default() };
        // Twice: what others count must not be added up.
        metrics.text(&load, &pond);
        let page = metrics.text(&load, &pond);
        for line in [
            "duckpond_http_requests_total{route=\"/health\",status=\"200\"} 1",
            "duckpond_prompt_tokens_total 7",
            "duckpond_cached_prompt_tokens_total 2",
            "duckpond_requests_waiting 3",
            "duckpond_cache_positions_used 7",
            "duckpond_duck_state{duck=\"duck-01\",port=\"\",state=\"ready\"} 1",
            "duckpond_duck_retries_total{duck=\"duck-01\",port=\"\"} 5",
            "duckpond_take_overs_total 2",
            "duckpond_duck_step_seconds{duck=\"duck-01\",port=\"\"} 0.00025",
            "duckpond_time_to_first_token_seconds_bucket{le=\"0.005\"} 1",
            "duckpond_answers_total{reason=\"stop\"} 1",
            "duckpond_build_info{version=\"0.1.0\",program=\"\",system=\"\",generation=\"42\",kernels_hash=\"\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!metrics.text(&load, &PondStatus::default()).contains("duck-01"));
    }

    #[test]
    fn pages_made_at_the_same_time_are_all_right() {
        let metrics = Metrics::new();
        let ducks = (0..30).map(|n| Duck { name: format!("duck-{n}"), retries: 5, ..Duck::default() });
        let pond = PondStatus { ducks: ducks.collect(), take_overs: 2, ..PondStatus::default() };
        let expected = metrics.text(&Load::default(), &pond);
        std::thread::scope(|scope| {
            let scrape =
                || (0..200).map(|_| metrics.text(&Load::default(), &pond)).find(|page| page.len() != expected.len());
            let scrapes: Vec<_> = (0..4).map(|_| scope.spawn(scrape)).collect();
            for scrape in scrapes {
                assert_eq!(scrape.join().expect("it ends"), None);
            }
        });
    }

    #[test]
    fn every_family_is_named_once_also_without_a_series() {
        let metrics = Metrics::new();
        let empty = metrics.text(&Load::default(), &PondStatus::default());
        let port = crate::pond::Port { name: "a".into(), ..Default::default() };
        let duck = Duck { temperature: Some(40.0), ..Duck::default() };
        let pond =
            PondStatus { build: Some(Build::default()), ports: vec![port], ducks: vec![duck], ..PondStatus::default() };
        metrics.route("/health");
        let full = metrics.text(&Load::default(), &pond);
        let heads = |page: &str| -> Vec<String> {
            let mut heads: Vec<String> = page.lines().filter(|l| l.starts_with("# ")).map(str::to_owned).collect();
            assert_eq!(heads.pop().as_deref(), Some("# EOF"), "{page}");
            heads.sort();
            heads
        };
        assert_eq!(heads(&empty), heads(&full));
        assert!(heads(&empty).windows(2).all(|pair| pair[0] != pair[1]), "{empty}");
        for reason in ENDS {
            assert!(empty.contains(&format!("duckpond_answers_total{{reason=\"{reason}\"}} 0\n")), "{empty}");
        }
        assert!(full.contains("duckpond_http_requests_total{route=\"/health\",status=\"200\"} 0\n"), "{full}");
    }
}
