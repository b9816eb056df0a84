//! Machines under QEMU, always emulated (TCG): a machine that can be described in a few lines, its serial line, and its end.
//!
//! A machine is killed when its [`Qemu`] is dropped, also when the test's process is killed. Nothing else is ever signalled. Devices
//! come only when they are asked for (`-nodefaults`), so that firmware finds nothing else to try.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The program, of Debian package qemu-system-x86.
const PROGRAM: &str = "qemu-system-x86_64";
/// UEFI for virtual machines, of Debian package ovmf: the firmware, and its variables as they are at first.
const OVMF: [&str; 2] = ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"];
/// Where a machine writes to end with an exit code of its own.
pub const EXIT_PORT: u16 = 0xf4;
/// Time between two looks whether a machine has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Characters of the serial line that a failure repeats.
const TOLD: usize = 6000;

/// What a machine starts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// QEMU itself loads an ELF that has a PVH note, and passes a command line.
    Pvh {
        /// The ELF.
        kernel: PathBuf,
        /// Its command line.
        append: String,
    },
    /// A PC's BIOS (SeaBIOS) boots from what may be booted from.
    Bios,
    /// UEFI (OVMF) boots from what may be booted from.
    Uefi,
}

/// Network cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// virtio-net over PCI.
    Virtio,
    /// Realtek RTL8139C+.
    Rtl8139,
    /// Intel 82574.
    E1000e,
}

/// What a card is plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A tap interface that exists already, in the network namespace that QEMU runs in.
    Tap(String),
    /// Datagrams between two Unix sockets, a frame in each; QEMU makes the first path, the other end the second.
    Unix {
        /// QEMU's end.
        local: PathBuf,
        /// Where it sends to.
        remote: PathBuf,
    },
    /// UDP datagrams, a frame in each, between two addresses such as `127.0.0.1:7000`.
    Udp {
        /// QEMU's end.
        local: std::net::SocketAddr,
        /// Where it sends to.
        remote: std::net::SocketAddr,
    },
}

/// A card of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its kind.
    pub card: Card,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// What it is plugged into.
    pub wire: Wire,
    /// Whether the machine's firmware boots over it.
    pub boots: bool,
}

/// A disc with an image that nobody writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disc {
    /// In a CD drive.
    Cd(PathBuf),
    /// On a USB stick.
    Usb(PathBuf),
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct Machine {
    /// How it starts.
    pub start: Start,
    /// MiB of memory.
    pub memory_mib: u32,
    /// Processors.
    pub cores: u32,
    /// QEMU's name for the kind of processor.
    pub cpu: String,
    /// Whether instructions are counted: one takes 2^n virtual nanoseconds, on one processor at a time.
    pub counted: Option<u32>,
    /// Cards.
    pub nics: Vec<Nic>,
    /// Discs, tried in this order after the cards.
    pub discs: Vec<Disc>,
    /// Whether a reset starts it again; otherwise it ends the machine.
    pub reboots: bool,
    /// The network namespace that QEMU runs in, if not the test's own.
    pub namespace: Option<String>,
    /// More arguments, after all others.
    pub more: Vec<String>,
}

impl Machine {
    /// One with 256 MiB, one processor that can do all that QEMU can, an exit port and a serial line; a reset ends it.
    pub fn new(start: Start) -> Machine {
        Machine {
            start,
            memory_mib: 256,
            cores: 1,
            cpu: "max".into(),
            counted: None,
            nics: Vec::new(),
            discs: Vec::new(),
            reboots: false,
            namespace: None,
            more: Vec::new(),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// What is missing on this machine, with the Debian package that has it.
    pub fn spawn(&self) -> Result<Qemu, String> {
        let folder = TempDir::new().map_err(|error| format!("cannot make a folder: {error}"))?;
        let arguments = self.arguments(folder.path())?;
        let mut command = Vec::new();
        // Each of these becomes the next program, so that the process is QEMU in the end: nobody in between has to be killed.
        if let Some(namespace) = &self.namespace {
            command.extend(["ip", "netns", "exec", namespace].map(String::from));
        }
        command.extend(["setpriv", "--pdeathsig", "KILL", PROGRAM].map(String::from));
        command.extend(arguments);
        Qemu::spawn(&command, folder)
    }

    /// QEMU's arguments; files that it changes lie in `folder`.
    fn arguments(&self, folder: &Path) -> Result<Vec<String>, String> {
        let mut arguments = Arguments::default();
        arguments.add("-machine", "q35");
        match self.counted {
            None => arguments.add("-accel", "tcg,thread=multi"),
            Some(shift) => {
                arguments.add("-accel", "tcg,thread=single");
                arguments.add("-icount", &format!("shift={shift},align=off,sleep=off"));
            }
        }
        arguments.add("-cpu", &self.cpu);
        arguments.add("-m", &self.memory_mib.to_string());
        arguments.add("-smp", &self.cores.to_string());
        arguments.0.extend(["-nodefaults", "-no-user-config"].map(String::from));
        arguments.add("-display", "none");
        arguments.add("-serial", "stdio");
        arguments.add("-device", &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=4"));
        if !self.reboots {
            arguments.0.push("-no-reboot".into());
        }
        match &self.start {
            Start::Pvh { kernel, append } => {
                arguments.add("-kernel", text(kernel)?);
                arguments.add("-append", append);
            }
            Start::Bios => {}
            Start::Uefi => {
                let variables = folder.join("variables.fd");
                let [code, first] = OVMF;
                let missing = |error: io::Error| format!("{first} (Debian package ovmf): {error}");
                fs::write(&variables, fs::read(first).map_err(missing)?).map_err(|e| e.to_string())?;
                arguments.add("-drive", &format!("if=pflash,format=raw,unit=0,readonly=on,file={code}"));
                arguments.add("-drive", &format!("if=pflash,format=raw,unit=1,file={}", value(text(&variables)?)));
            }
        }
        for (i, nic) in self.nics.iter().enumerate() {
            arguments.nic(i, nic, &self.start)?;
        }
        for (i, disc) in self.discs.iter().enumerate() {
            arguments.disc(i, disc, self.nics.len() + i)?;
        }
        arguments.0.extend_from_slice(&self.more);
        Ok(arguments.0)
    }
}

/// QEMU's command line.
#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn add(&mut self, flag: &str, value: &str) {
        self.0.extend([flag.to_owned(), value.to_owned()]);
    }

    fn nic(&mut self, i: usize, nic: &Nic, start: &Start) -> Result<(), String> {
        let netdev = match &nic.wire {
            Wire::Tap(name) => format!("tap,id=n{i},ifname={},script=no,downscript=no", value(name)),
            Wire::Unix { local, remote } => format!(
                "dgram,id=n{i},local.type=unix,local.path={},remote.type=unix,remote.path={}",
                value(text(local)?),
                value(text(remote)?)
            ),
            Wire::Udp { local, remote } => format!(
                "dgram,id=n{i},local.type=inet,local.host={},local.port={},remote.type=inet,remote.host={},remote.port={}",
                local.ip(),
                local.port(),
                remote.ip(),
                remote.port()
            ),
        };
        self.add("-netdev", &netdev);
        let card = match nic.card {
            Card::Virtio => "virtio-net-pci",
            Card::Rtl8139 => "rtl8139",
            Card::E1000e => "e1000e",
        };
        let [a, b, c, d, e, f] = nic.mac;
        let mut device = format!("{card},netdev=n{i},mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        // OVMF knows virtio itself; every other card boots by the program in its own memory (Debian package ipxe-qemu).
        if !nic.boots || (*start == Start::Uefi && nic.card == Card::Virtio) {
            device += ",romfile=";
        }
        if nic.boots {
            device += &format!(",bootindex={i}");
        }
        self.add("-device", &device);
        Ok(())
    }

    fn disc(&mut self, i: usize, disc: &Disc, bootindex: usize) -> Result<(), String> {
        let (file, device) = match disc {
            Disc::Cd(file) => (file, "ide-cd"),
            Disc::Usb(file) => (file, "usb-storage"),
        };
        if device == "usb-storage" && !self.0.iter().any(|argument| argument.starts_with("qemu-xhci")) {
            self.add("-device", "qemu-xhci,id=usb");
        }
        self.add("-drive", &format!("if=none,id=d{i},format=raw,readonly=on,file={}", value(text(file)?)));
        self.add("-device", &format!("{device},drive=d{i},bootindex={bootindex}"));
        Ok(())
    }
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not text", path.display()))
}

/// A value of one of QEMU's options: commas are doubled.
fn value(text: &str) -> String {
    text.replace(',', ",,")
}

/// What the serial line has said.
#[derive(Default)]
struct Serial {
    bytes: Vec<u8>,
    /// Up to where [`Qemu::wait_for`] has looked.
    seen: usize,
    ended: bool,
}

/// A machine that runs. It is killed when dropped.
pub struct Qemu {
    child: Arc<Mutex<Child>>,
    serial: Arc<(Mutex<Serial>, Condvar)>,
    errors: Arc<Mutex<String>>,
    folder: TempDir,
}

impl Qemu {
    fn spawn(command: &[String], folder: TempDir) -> Result<Qemu, String> {
        let (program, arguments) = command.split_first().expect("a command has a program");
        let mut qemu = Command::new(program);
        qemu.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (give, taken) = mpsc::channel();
        // The kernel's promise to end a child with its parent is about the parent's thread, so this one stays as long as the child.
        thread::spawn(move || {
            let mut child = match qemu.spawn() {
                Ok(child) => child,
                Err(error) => return give.send(Err(error)).unwrap_or(()),
            };
            let pipes = child.stdout.take().zip(child.stderr.take());
            let child = Arc::new(Mutex::new(child));
            let _ = give.send(Ok((child.clone(), pipes)));
            while lock(&child).try_wait().is_ok_and(|status| status.is_none()) {
                thread::sleep(LOOK);
            }
        });
        let spawned = taken.recv().map_err(|_| "the thread of a machine has ended".to_owned())?;
        let (child, pipes) = spawned
            .map_err(|error| format!("{program} (Debian packages qemu-system-x86, iproute2, util-linux): {error}"))?;
        let (mut stdout, mut stderr) = pipes.expect("they are piped");
        let serial = Arc::<(Mutex<Serial>, Condvar)>::default();
        let errors = Arc::<Mutex<String>>::default();
        let (said, told) = (serial.clone(), errors.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                lock(&said.0).bytes.extend_from_slice(&bytes[..count]);
                said.1.notify_all();
            }
            lock(&said.0).ended = true;
            said.1.notify_all();
        });
        thread::spawn(move || {
            let mut bytes = [0; 512];
            while let Ok(count @ 1..) = stderr.read(&mut bytes) {
                lock(&told).push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Ok(Qemu { child, serial, errors, folder })
    }

    /// A folder that is there as long as the machine.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until the serial line has said a whole line with `part` in it, after the line that was last waited for. Returns that line.
    ///
    /// # Errors
    /// The end of what it has said instead, when the machine or the time is at its end.
    pub fn wait_for(&self, part: &str, limit: Duration) -> Result<String, String> {
        let until = Instant::now() + limit;
        let mut serial = lock(&self.serial.0);
        loop {
            while let Some(length) = serial.bytes[serial.seen..].iter().position(|&byte| byte == b'\n') {
                let line = &serial.bytes[serial.seen..serial.seen + length];
                let line = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
                serial.seen += length + 1;
                if line.contains(part) {
                    return Ok(line);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || serial.ended {
                let why = if serial.ended { "the machine has ended" } else { "nothing came in time" };
                drop(serial);
                return Err(format!("waited for {part:?}, and {why}; {}", self.told()));
            }
            let waited = self.serial.1.wait_timeout(serial, left);
            serial = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the machine has ended. Returns QEMU's exit code: 0 for a reset or power off, 2 n + 1 for n written to the exit port.
    ///
    /// # Errors
    /// The end of what it has said, when the time is at its end or a signal has ended it.
    pub fn wait_exit(&self, limit: Duration) -> Result<i32, String> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = lock(&self.child).try_wait().map_err(|error| error.to_string())? {
                return status.code().ok_or_else(|| format!("QEMU has ended by a signal; {}", self.told()));
            }
            if Instant::now() >= until {
                return Err(format!("the machine runs on; {}", self.told()));
            }
            thread::sleep(LOOK);
        }
    }

    /// Types on the serial line.
    ///
    /// # Errors
    /// A machine that has ended.
    pub fn type_in(&self, text: &str) -> io::Result<()> {
        let mut child = lock(&self.child);
        let stdin = child.stdin.as_mut().expect("it is piped");
        stdin.write_all(text.as_bytes())?;
        stdin.flush()
    }

    /// All that the serial line has said.
    pub fn serial(&self) -> String {
        String::from_utf8_lossy(&lock(&self.serial.0).bytes).into_owned()
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        lock(&self.child).try_wait().is_ok_and(|status| status.is_none())
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Ends it now.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The end of the serial line and QEMU's own messages, for a failure.
    fn told(&self) -> String {
        let serial = self.serial();
        let start = serial.char_indices().rev().nth(TOLD).map_or(0, |(start, _)| start);
        format!("QEMU says {:?}, the serial line:\n{}", lock(&self.errors).trim(), &serial[start..])
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_only_what_was_asked_for() {
        let mut machine = Machine::new(Start::Pvh { kernel: "a,b.elf".into(), append: "name=a key=b".into() });
        machine.nics.push(Nic {
            card: Card::E1000e,
            mac: [2, 0, 0, 0, 1, 0xab],
            wire: Wire::Unix { local: "/x,1".into(), remote: "/y".into() },
            boots: false,
        });
        machine.discs = vec![Disc::Usb("u".into()), Disc::Usb("v".into())];
        let arguments = machine.arguments(Path::new("/")).expect("text");
        let has = |text: &str| arguments.iter().filter(|a| *a == text).count();
        assert_eq!(has("dgram,id=n0,local.type=unix,local.path=/x,,1,remote.type=unix,remote.path=/y"), 1);
        assert_eq!(has("e1000e,netdev=n0,mac=02:00:00:00:01:ab,romfile="), 1);
        assert_eq!((has("a,b.elf"), has("name=a key=b"), has("-nodefaults")), (1, 1, 1));
        assert_eq!((has("qemu-xhci,id=usb"), has("usb-storage,drive=d1,bootindex=2")), (1, 1));
        assert_eq!(arguments.iter().filter(|a| a.contains("accel") || a.contains("tcg")).count(), 2);
    }
}
