//! The duck on Linux: what [`node::Duck`] needs, and the loop around it.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use fp9::Isa;
use link::{Link, Waker};
use node::{Duck, Figures, Gauges, Parts, Region};
use rustix::rand::{GetRandomFlags, getrandom};
use wire::crc;
use wire::duck::STEPS;
use wire::frame::MIN_MTU;
use wire::frozen::{FEATURE_AVX_VNNI, FEATURE_AVX2, FEATURE_HUGE_PAGES, FEATURE_LOCKED};

use crate::carrier::{Linked, micros};
use crate::cores::Threads;
use crate::error::DuckError;
use crate::hasher::Hasher;
use crate::memory;
use crate::monitor::{Monitor, Stop};
use crate::options::{HugePages, Options};
use crate::pool::{Patience, Pool, pin_to, processor};
use crate::sensors::Sensors;

/// What announcements call this program.
const PROGRAM: u8 = 1;

/// Why a duck ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was told to by [`Stop`].
    Stopped,
    /// The pond's owner wants it to start afresh, with empty memory.
    Reset {
        /// 0: reboot.
        action: u8,
    },
}

/// A duck.
pub struct Node {
    duck: Box<Duck<Linked, Threads, Hasher, Sensed>>,
    monitor: Monitor,
    waker: Waker,
    processor: Option<usize>,
}

impl Node {
    /// A duck on `link`, with empty memory. Its threads start now, its network thread is whoever calls [`Node::run`].
    ///
    /// # Errors
    /// Impossible options, or too little memory.
    pub fn new(link: Box<dyn Link>, options: Options) -> Result<Node, DuckError> {
        options.check()?;
        let mtu = link.mtu();
        if mtu < MIN_MTU {
            return Err(DuckError::Mtu { link: link.describe(), expected: MIN_MTU, found: mtu });
        }
        let len = usize::try_from(options.memory).unwrap_or(usize::MAX);
        let (blocks, huge) = memory::region(len, options.huge_pages)?;
        let locked = options.lock && lock(&blocks);
        let (results, _) = memory::region(options.result.saturating_mul(STEPS), HugePages::Off)?;
        let (shared, _) = memory::region(options.scratch, HugePages::Off)?;
        let patience = Patience::new(options.cores);
        let parts = Parts {
            program: PROGRAM,
            features: features(huge, locked),
            id: options.id,
            link: u16::try_from(link.speed()).unwrap_or(u16::MAX),
            firmware: firmware(),
            boot: u64::from_le_bytes(random()?),
            kernels: wire::built_in_kernels(),
            key: options.key,
            seed: options.seed.map_or_else(random, Ok)?,
            max_frame: mtu,
            crc: crc::native,
            blocks,
            results,
            shared,
            input: options.input,
            core0_share: options.core0_share,
            scrub: options.scrub.map(micros),
            linger: micros(patience.linger()),
        };
        let threads = Threads {
            count: options.cores,
            pool: Pool::new(options.cores - 1, options.pin.as_deref(), patience)?,
            patience,
            isa: Isa::detect(),
        };
        let (waker, monitor) = (link.waker(), Monitor::new(link.waker()));
        let hasher = Hasher::new(link.waker())?;
        let sensed = Sensed { sensors: Sensors::new(Path::new("/sys")), monitor: monitor.clone() };
        let linked = Linked { link, monitor: monitor.clone(), patience, origin: Instant::now() };
        Ok(Node {
            duck: Box::new(Duck::new(parts, linked, threads, hasher, sensed)),
            monitor,
            waker,
            processor: processor(options.pin.as_deref(), 0),
        })
    }

    /// Its figures, also while it runs.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Bytes of blocks that it announces to hold.
    pub fn memory(&self) -> u64 {
        self.duck.memory()
    }

    /// Serves its link until it is told to stop or to start afresh.
    pub fn run(&mut self, stop: &Stop) -> Exit {
        stop.attach(self.waker.clone());
        pin_to(self.processor);
        while !stop.is_triggered() {
            if let Some((block, offset)) = self.monitor.wanted_damage()
                && self.duck.flip_byte(block, offset)
            {
                self.monitor.damaged();
            }
            if let Some(node::Exit::Reset { action }) = self.duck.turn() {
                return Exit::Reset { action };
            }
        }
        Exit::Stopped
    }
}

/// Sensors, and whoever looks at the figures.
struct Sensed {
    sensors: Sensors,
    monitor: Monitor,
}

impl Gauges for Sensed {
    fn temperature(&mut self) -> u64 {
        self.sensors.temperature()
    }

    fn throttled(&mut self) -> u64 {
        self.sensors.throttled()
    }

    fn publish(&mut self, figures: &Figures) {
        self.monitor.publish(figures);
    }
}

/// Locks blocks into memory, or says why not.
fn lock(region: &Region) -> bool {
    let locked = memory::lock(region);
    if let Err(error) = &locked {
        tracing::warn!(
            "blocks are not locked into memory: {error}; raise the limit (ulimit -l, LimitMEMLOCK) or do without"
        );
    }
    locked.is_ok()
}

/// Up to 256 bytes, which come whole.
fn random<const N: usize>() -> Result<[u8; N], DuckError> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| DuckError::Random(error.into()))?;
    Ok(bytes)
}

fn features(huge: bool, locked: bool) -> u32 {
    let mut features = 0;
    if Isa::detect() != Isa::Scalar {
        features |= FEATURE_AVX2;
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avxvnni") {
        features |= FEATURE_AVX_VNNI;
    }
    if huge {
        features |= FEATURE_HUGE_PAGES;
    }
    if locked {
        features |= FEATURE_LOCKED;
    }
    features
}

/// Digest of this process's own program; zero where that cannot be read.
fn firmware() -> [u8; 32] {
    static DIGEST: OnceLock<[u8; 32]> = OnceLock::new();
    *DIGEST.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        let read = std::fs::File::open("/proc/self/exe").and_then(|mut file| std::io::copy(&mut file, &mut hasher));
        if read.is_ok() { *hasher.finalize().as_bytes() } else { [0; 32] }
    })
}
