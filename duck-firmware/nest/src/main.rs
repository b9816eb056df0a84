//! The supervisor of a duck without an operating system.
//!
//! It boots by multiboot2 or PVH, takes all of the machine, and is then the same duck as `duckd`: [`node::Duck`] on a polled network card, with
//! kernels in ring 3. Whatever goes wrong is told on the serial port, on the screen and, once there is a host, to the host.
#![no_std]
#![no_main]
#![allow(unsafe_code)] // the machine

extern crate alloc;

mod machine;

use core::fmt::Write;
use core::panic::PanicInfo;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::string::String;
use arrayvec::ArrayString;
use bare as _;
use multiboot2::{BootInformation, BootInformationHeader};
use nest::boot_info::{BootInfo, Rsdp};
use nest::command::{Choice, Command, default_id};
use nest::crc;
use nest::madt::{Processors, processors};
use nic::pci::{disable_bus_master, functions};
use nic::{Bdf, Filter, Found, Mac, Nic, Options, probe};
use node::{Duck, Exit, Parts, SLICE, Sliced};
use wire::frozen::{FEATURE_AVX_VNNI, FEATURE_AVX2, FEATURE_HUGE_PAGES, FEATURE_ISOLATED, FEATURE_LOCKED, RESET_OFF};
use wire::key::PublicKey;
use x86_64::instructions::port::Port;
use x86_64::instructions::random::RdRand;

use machine::apic::{Apic, mask_lines};
use machine::judge::Judge;
use machine::network::{Network, Ports};
use machine::sensors::Sensors;
use machine::{boot, clock, last_words, memory, output, power, smp};

/// What announcements call this program.
const PROGRAM: u8 = 0;
/// Core 0's part of the work in 256ths of another core's: it also polls the card.
const CORE0_SHARE: u32 = 236;
/// In what time all blocks are hashed again, in microseconds.
const SCRUB: u64 = 3_600_000_000;
/// How long a duck looks for the next step without sleeping, in microseconds: where the processor is its own, and where it may be shared.
const LINGER: u64 = 100_000;
const LINGER_POLITE: u64 = 50;

/// Where Rust begins: on the first core, with 4 GiB mapped and a stack.
extern "sysv64" fn start(info: u32, loader: u32) -> ! {
    output::start();
    let told = clock::start();
    log::info!("nest {}", env!("CARGO_PKG_VERSION"));
    // Interrupts of the old controller, which nobody wants.
    // SAFETY: its mask registers.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
    match run(info, loader, told.crystal) {
        Ok(never) => match never {},
        Err(why) => panic!("{why}"),
    }
}

fn run(info: u32, loader: u32, crystal: Option<u64>) -> Result<core::convert::Infallible, String> {
    let info =
        boot_info(info, loader).ok_or("the boot loader said nothing that is understood: boot by multiboot2 or PVH")?;
    let command = Command::parse(&info.command);
    if let Some((at, len)) = command.strange {
        log::warn!("command line: {:?} is not understood", &info.command[at..at + len]);
    }
    quiet();
    let mut processors = tables(&info);
    if !memory::has_trampoline(&info) {
        log::warn!("the memory in which other cores start is taken: going on with one core");
        processors.ids.clear();
    }
    let cores = processors.ids.len().max(1);
    // SAFETY: once; all that the boot loader said is in `info`.
    let mut memory = unsafe { memory::start(&info, cores as u64) }.map_err(|why| alloc::format!("memory: {why}"))?;
    output::keep();
    let space = memory.space;
    if let Some(shape) = info.framebuffer
        && let Some(base) =
            memory::map_device(space, shape.address, shape.len()).and_then(|at| NonNull::new(at as *mut u8))
    {
        // SAFETY: mapped just now, all of it.
        unsafe { output::show(base, shape) };
    }
    output::head(0, format_args!("duckpond nest {}", env!("CARGO_PKG_VERSION")));
    if let Some((kind, address, value)) = processors.reset {
        let at = if kind == 0 { memory::map_device(space, address, 1) } else { Some(address) };
        power::RESET.call_once(|| (kind, at.unwrap_or(0), value));
    }
    for &lines in &processors.lines {
        if let Some(at) = memory::map_device(space, lines, 0x20) {
            // SAFETY: mapped just now; the tables say what is there.
            unsafe { mask_lines(at) };
        }
    }
    power::OFF.call_once(|| processors.off.clone());
    let apic = Apic::find(|at| memory::map_device(space, at, 4096)).ok_or("local interrupt controller: not mapped")?;
    let hypervisor = core::arch::x86_64::__cpuid(1).ecx >> 31 != 0;
    apic.start();
    apic.calibrate(crystal);
    // SAFETY: once, here; stacks, trampoline and parameters are free memory.
    let cpus = unsafe { smp::start(&processors.ids, memory.stacks, space, apic, hypervisor) };
    power::full_speed();
    let bytes = memory.blocks.len();
    log::info!(
        "{} cores, {} MiB for blocks, {} GiB of them on pages of 1 GiB, counter at {} MHz{}",
        cpus.len(),
        bytes >> 20,
        memory.on_huge >> 30,
        clock::scale().hertz() / 1_000_000,
        if hypervisor { ", on a virtual machine" } else { "" }
    );
    if command.memory_test {
        test_memory(&memory.blocks)?;
    }
    let found = card(&mut memory, &command);
    let (mut nic, at) = (found.nic, found.at);
    let mac = nic.mac();
    let id = command.id.unwrap_or(default_id(mac));
    let key = command.key.unwrap_or_else(|| {
        log::error!("no key on the command line: no host can use this duck; boot it from the pond's own images");
        PublicKey([0; 32])
    });
    let name = core::str::from_utf8(&id).unwrap_or_default().trim_end_matches('\0');
    let link = link(&mut nic);
    log::info!("{name} at {}, {} at {at}, {link} Mbit/s", Mac(mac), nic.name());
    log::info!("{}: {}", nic.name(), nic.proven());
    output::head(1, format_args!("{name}  {}", Mac(mac)));
    output::head(2, format_args!("{} at {at}, {link} Mbit/s, {} cores, {} MiB", nic.name(), cpus.len(), bytes >> 20));

    let avx2 = fp9::Isa::detect() != fp9::Isa::Scalar;
    let seed = seed();
    let features = [
        (true, FEATURE_ISOLATED | FEATURE_HUGE_PAGES | FEATURE_LOCKED),
        (avx2, FEATURE_AVX2),
        (avx2 && core::arch::x86_64::__cpuid_count(7, 1).eax & 1 << 4 != 0, FEATURE_AVX_VNNI),
    ];
    let mut boot = [0; 8];
    boot.copy_from_slice(&blake3::hash(&seed).as_bytes()[..8]);
    let parts = Parts {
        program: PROGRAM,
        features: features.iter().filter(|f| f.0).fold(0, |all, f| all | f.1),
        id,
        link: u16::try_from(link).unwrap_or(u16::MAX),
        firmware: firmware(),
        boot: u64::from_le_bytes(boot),
        kernels: [0; 32],
        key,
        seed,
        max_frame: nic.max_frame() - wire::ethernet::ETHERNET,
        crc: crc::fastest(),
        blocks: memory.blocks,
        results: memory.results,
        shared: memory.shared,
        input: memory.input,
        core0_share: if cpus.len() == 1 { 256 } else { CORE0_SHARE },
        scrub: Some(SCRUB),
        linger: if hypervisor { LINGER_POLITE } else { LINGER },
    };
    let judge = Judge::new(cpus, apic, space, memory.programs, hypervisor);
    let network = Network::new(nic, apic, hypervisor);
    let mut duck = Duck::new(parts, network, judge, Sliced::new(SLICE), Sensors::new());
    let mut words = [0; 1024];
    if let Some(len) = last_words::take(&mut words) {
        let text = core::str::from_utf8(&words[..len]).unwrap_or("something that is no text");
        log::error!("the last run ended with: {}", text.trim_end());
    }
    log::info!("announcing");
    loop {
        while let Some((level, line)) = output::next() {
            duck.log(level, &line);
        }
        match duck.turn() {
            Some(Exit::Reset { action: RESET_OFF }) => {
                log::info!("powering off, as the pond's owner wants");
                power::off();
            }
            Some(Exit::Reset { .. }) => {
                log::info!("starting afresh, as the pond's owner wants");
                power::reset();
            }
            None => {}
        }
    }
}

/// What the boot loader said.
fn boot_info(info: u32, loader: u32) -> Option<BootInfo> {
    match loader {
        boot::BY_MULTIBOOT2 => {
            // SAFETY: GRUB's promise: its information at this address, below 4 GiB, which is mapped.
            let info = unsafe { BootInformation::load(info as usize as *const BootInformationHeader) };
            info.ok().map(|i| BootInfo::multiboot2(&i))
        }
        // SAFETY: QEMU's promise, likewise.
        _ => BootInfo::pvh(info.into(), &mut |at, out| unsafe { memory::read_low(at, out) }),
    }
}

/// What the firmware's tables say; nothing if there are none.
fn tables(info: &BootInfo) -> Processors {
    // SAFETY: tables below 4 GiB, which nobody writes.
    let mut low = |at, out: &mut [u8]| unsafe { memory::read_low(at, out) };
    let found = match info.rsdp {
        Some(Rsdp::At(at)) => processors(at, &mut low),
        // The copy stands for the first bytes of an address that no table has.
        Some(Rsdp::Copy(copy)) => processors(u64::MAX - 64, &mut |at, out| match at.checked_sub(u64::MAX - 64) {
            Some(at) => copy.get(at as usize..at as usize + out.len()).map(|b| out.copy_from_slice(b)).is_some(),
            None => low(at, out),
        }),
        None => None,
    };
    found.unwrap_or_else(|| {
        log::warn!("the firmware's tables are missing: going on with one core");
        Processors::default()
    })
}

/// Writes and reads all memory for blocks.
fn test_memory(blocks: &node::Region) -> Result<(), String> {
    let (writable, len) = (blocks.writable().as_ptr().cast::<u64>(), blocks.len() / 8);
    let mut told = 0;
    for flip in [0, u64::MAX] {
        let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ flip;
        // SAFETY: the region's own bytes, which nobody uses yet.
        unsafe {
            (0..len).for_each(|i| writable.add(i).write_volatile(value(i)));
            for i in 0..len {
                let read = writable.add(i).read_volatile();
                if read != value(i) {
                    return Err(alloc::format!(
                        "memory test: word {i} of the blocks reads {read:#x}, expected {:#x}: replace this duck's memory",
                        value(i)
                    ));
                }
                if i >> 27 != told {
                    told = i >> 27;
                    output::head(3, format_args!("memory test: {told} GiB"));
                }
            }
        }
    }
    log::info!("memory test: {} MiB are sound", blocks.len() >> 20);
    Ok(())
}

/// The network card: tried again and again, since a duck without one is no duck.
fn card(memory: &mut memory::Memory, command: &Command) -> Found<nic::Bar> {
    let filter = match command.nic {
        Choice::First => Filter::default(),
        Choice::Place(bus, device, function) => Filter { bdf: Some(Bdf { bus, device, function }), mac: None },
        Choice::Mac(mac) => Filter { bdf: None, mac: Some(mac) },
    };
    let space = memory.space;
    let map = |at, len| memory::map_registers(space, at, len);
    let wait = |us: u32| clock::delay(us.into());
    match probe(&Ports, map, &mut memory.cards, &wait, &filter, &Options::default()) {
        Ok(found) => {
            found.notes.iter().for_each(|note| log::warn!("{}: {note}", found.nic.name()));
            found
        }
        Err(error) => {
            log::error!("{error}");
            output::head(1, format_args!("NO NETWORK: see below; starting afresh in a minute"));
            clock::delay(60_000_000);
            power::reset();
        }
    }
}

/// The link's speed in Mbit/s once it is up; 0 if it stays down for some seconds.
fn link(nic: &mut impl Nic) -> u32 {
    let end = clock::now() + 6_000_000;
    loop {
        let speed = nic.link_mbps();
        if speed > 0 || clock::now() > end {
            if speed == 0 {
                log::warn!("the link is down: look at cable and switch; going on");
            }
            return speed;
        }
        clock::delay(10_000);
    }
}

/// Random bytes: the processor's own numbers, and the time.
fn seed() -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for _ in 0..8 {
        let number = RdRand::new().and_then(|r| (0..10).find_map(|_| r.get_u64()));
        hasher.update(&number.unwrap_or_default().to_le_bytes());
        hasher.update(&clock::counter().to_le_bytes());
        // How long a port takes is never quite the same.
        clock::delay(1);
    }
    // The real-time clock's seconds, minutes, hours, day, month, year.
    for register in [0u8, 2, 4, 7, 8, 9] {
        // SAFETY: reads a register of the clock.
        let value = unsafe {
            Port::<u8>::new(0x70).write(0x80 | register);
            Port::<u8>::new(0x71).read()
        };
        hasher.update(&[value]);
    }
    *hasher.finalize().as_bytes()
}

/// blake3 of this image's code and constants as they lie in memory, see [`wire::frozen::Announce::firmware`].
fn firmware() -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for (start, end) in [(boot::image_start(), boot::text_end()), (boot::rodata_start(), boot::rodata_end())] {
        // SAFETY: the image's own code and constants.
        hasher.update(unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) });
    }
    *hasher.finalize().as_bytes()
}

/// Keeps all devices from memory: firmware may have left some at work, and memory is about to be used.
fn quiet() {
    const BRIDGE: u16 = 6;
    const DISPLAY: u16 = 3;
    for device in functions(&Ports).filter(|f| ![BRIDGE, DISPLAY].contains(&(f.class >> 8))) {
        disable_bus_master(&Ports, device.bdf);
    }
}

static PANICKED: AtomicBool = AtomicBool::new(false);

/// Tells what happened, leaves it for the next start, and starts afresh.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = ArrayString::<512>::new();
    // What is longer is cut.
    let _ = writeln!(text, "PANIC: {}", info.message());
    if let Some(place) = info.location() {
        let _ = writeln!(text, "at {place}");
    }
    // A mistake in telling of one must not go round for ever.
    if PANICKED.swap(true, Ordering::SeqCst) {
        power::reset();
    }
    last_words::leave(text.as_bytes());
    output::last(&text);
    output::head(1, format_args!("PANIC: see below; starting afresh in ten seconds"));
    clock::delay(10_000_000);
    power::reset()
}
