//! Runs the kernels' program in ring 3 on every core, and says how each step ended.
//!
//! A session has an address space of its own: the program's segments, a stack for each core, the table that the program is passed and the page
//! that it calls lie in slot 1, the memory of blocks and steps where the supervisor has it too. The program stays entered from step to step: a
//! core that asks for the next one waits in the supervisor. Whatever goes wrong ends the session; the supervisor goes on.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use kernels::abi::{MAX_CORES, state};
use kernels::program::{DONE, FRESH, PROGRAM_BASE, PROGRAM_LEN, PROGRAM_VERSION, Table, refusal};
use kernels::{Refusal, Running, StepBlock};
use nest::areas::{Area, SMALL};
use nest::program::check;
use nest::tables::{MapError, Space, Use};
use node::{Cores, Ended, Refused};
use wire::Micros;

use super::apic::Apic;
use super::cpu::{self, Cpu};
use super::memory::{self, Pool};
use super::traps::{self, CALL, TIMER, WAKE, enter};
use super::{clock, sensors, smp};

/// Bytes of a core's stack in ring 3.
pub const STACK_BYTES: u64 = 128 << 10;
/// Stacks start this far apart, so that one that overflows meets nothing.
const STACK_STRIDE: u64 = 1 << 20;
const STACKS: u64 = PROGRAM_BASE + PROGRAM_LEN;
const CALL_PAGE: u64 = PROGRAM_BASE + 2 * PROGRAM_LEN;
const TABLE_PAGE: u64 = CALL_PAGE + SMALL;
/// How long a step may take that names no limit: a core that never comes back must not need somebody to pull the plug.
const LONGEST: Micros = 60_000_000;
/// How much later than its limit a core is taken out of a step that it was told to leave.
const GRACE: Micros = 20_000;
/// How long a core that waits for others sleeps where the processor may be shared.
const NAP: Micros = 50;

/// How a core came back from ring 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Left {
    /// It asked for the next step.
    Next = 1,
    /// It trapped, or called what there is not.
    Trap = 2,
    /// Its time was over.
    Time = 3,
    /// It asked for the next step before it had ended its part of this one.
    Early = 4,
}

/// All cores, and the program in them.
#[derive(Debug)]
pub struct Judge {
    cpus: &'static [&'static Cpu],
    apic: Apic,
    own: Space,
    programs: Pool,
    polite: bool,
    loaded: Option<Loaded>,
}

#[derive(Clone, Copy, Debug)]
struct Loaded {
    space: Space,
    entry: u64,
    /// Whether cores have entered it.
    entered: bool,
}

impl Judge {
    /// `own`: the supervisor's address space; `polite`: the processor may be shared with others.
    pub fn new(cpus: &'static [&'static Cpu], apic: Apic, own: Space, programs: Pool, polite: bool) -> Judge {
        Judge { cpus, apic, own, programs, polite, loaded: None }
    }

    /// Leaves the program's address space on all cores.
    fn unload(&mut self) {
        if self.loaded.take().is_none() {
            return;
        }
        for cpu in &self.cpus[1..] {
            smp::order(cpu, self.apic, self.own, 0);
        }
        // SAFETY: the supervisor's own tables map all that is used.
        unsafe { memory::switch(self.own) };
        while !self.cpus[1..].iter().all(|c| c.is_idle()) {
            core::hint::spin_loop();
        }
    }

    fn map(&mut self, file: &[u8]) -> Result<Loaded, Refused> {
        let program = check(file)?;
        let none = || Refused::from("program: no memory is left for it");
        let full = |_: MapError| none();
        let pool = &mut self.programs;
        pool.reset();
        let space = Space::new(pool).map_err(full)?;
        space.share(self.own, 0..1, pool);
        space.share(self.own, 2..512, pool);
        for segment in &program.segments {
            let (at, len) = segment.pages();
            let area = pool.take(len).ok_or_else(none)?;
            let skip = segment.address - at;
            // SAFETY: frames of this pool, taken just now; `check` has bounded offset and length by the file and the pages.
            unsafe {
                let start = area.start as *mut u8;
                start.write_bytes(0, len as usize);
                start.add(skip as usize).copy_from_nonoverlapping(file[segment.offset..].as_ptr(), segment.len);
            }
            space.map(at, area, segment.how, false, pool).map_err(full)?;
        }
        for core in 0..self.cpus.len() as u64 {
            let area = pool.take(STACK_BYTES).ok_or_else(none)?;
            // SAFETY: as above.
            unsafe { (area.start as *mut u8).write_bytes(0, STACK_BYTES as usize) };
            space
                .map(STACKS + (core + 1) * STACK_STRIDE - STACK_BYTES, area, Use::UserData, false, pool)
                .map_err(full)?;
        }
        let calls = Area::new(traps::call_page(), SMALL);
        space.map(CALL_PAGE, calls, Use::UserCode, false, pool).map_err(full)?;
        let page = pool.take(SMALL).ok_or_else(none)?;
        // SAFETY: three functions of the page just mapped, as addresses that only ring 3 calls; then the table, on a frame taken just now.
        unsafe {
            let [next, boundary, idle] = traps::CALLS.map(|offset| CALL_PAGE + offset);
            let table = Table {
                version: PROGRAM_VERSION,
                size: size_of::<Table>() as u32,
                isa: u32::from(fp9::Isa::detect() != fp9::Isa::Scalar),
                polite: self.polite.into(),
                next: core::mem::transmute::<u64, extern "C" fn(u32) -> *const StepBlock>(next),
                boundary: core::mem::transmute::<u64, extern "C" fn()>(boundary),
                idle: core::mem::transmute::<u64, extern "C" fn()>(idle),
            };
            (page.start as *mut u8).write_bytes(0, SMALL as usize);
            (page.start as *mut Table).write(table);
        }
        space.map(TABLE_PAGE, page, Use::UserConstants, false, pool).map_err(full)?;
        Ok(Loaded { space, entry: program.entry, entered: false })
    }

    /// Hands a step to a core that waits.
    fn prepare(&self, cpu: &Cpu, loaded: &Loaded, block: u64, deadline: Micros) {
        // SAFETY: the core waits for orders, so its frame is this one's.
        let frame = unsafe { &mut *cpu.frame.get() };
        frame.deadline = clock::at(deadline);
        cpu.block.store(block, Ordering::Relaxed);
        if loaded.entered {
            frame.rax = block;
        } else {
            let index = u64::from(cpu.index);
            // A function's stack is 8 bytes off a multiple of 16 when it is entered.
            let stack = STACKS + (index + 1) * STACK_STRIDE - 8;
            let [code, data] = self.cpus[0].selectors();
            frame.set(loaded.entry, stack, [TABLE_PAGE, index], code, data);
        }
        cpu.fresh.store((!loaded.entered).into(), Ordering::Relaxed);
    }
}

impl Cores for Judge {
    fn count(&self) -> usize {
        self.cpus.len()
    }

    fn load(&mut self, program: Option<&[u8]>) -> Result<(), Refused> {
        self.unload();
        let file = program.ok_or("this duck has no kernels built in: the host must send a program")?;
        let loaded = self.map(file)?;
        self.loaded = Some(loaded);
        Ok(())
    }

    fn run(&mut self, step: Running<'_>, limit: Option<Micros>, serve: &mut dyn FnMut() -> bool) -> Ended {
        let Some(loaded) = self.loaded else { return Ended::Finished(Err(Refusal::Version)) };
        let deadline = limit.unwrap_or(clock::now() + LONGEST).saturating_add(GRACE);
        let block = core::ptr::from_ref(step.block()) as u64;
        let (own, others) = (self.cpus[0], &self.cpus[1..]);
        self.cpus.iter().for_each(|cpu| self.prepare(cpu, &loaded, block, deadline));
        others.iter().for_each(|cpu| smp::order(cpu, self.apic, loaded.space, block));
        // SAFETY: the session's tables map all of the supervisor's memory as its own do.
        unsafe { memory::switch(loaded.space) };
        if let Some(loaded) = &mut self.loaded {
            loaded.entered = true;
        }
        let failed = |cpu: &&'static Cpu| cpu.is_idle() && cpu.ended.load(Ordering::Acquire) != Left::Next as u32;
        let mut look = || {
            if !serve() || others.iter().any(failed) {
                step.abort();
            }
        };
        own.ended.store(0, Ordering::Relaxed);
        let left = run_core(own, self.apic, self.polite, &mut look);
        own.ended.store(left as u32, Ordering::Relaxed);
        if left != Left::Next {
            step.abort();
        }
        let mut looks = 0u32;
        while !others.iter().all(|c| c.is_idle()) {
            look();
            looks += 1;
            if self.polite && looks > 64 {
                smp::nap(self.apic, NAP);
            }
        }
        self.verdict()
    }
}

impl Judge {
    /// How a step ended in which no core is any more.
    fn verdict(&mut self) -> Ended {
        let ended = |left: Left| self.cpus.iter().find(|c| c.ended.load(Ordering::Acquire) == left as u32);
        let verdict = if let Some(cpu) = ended(Left::Trap).or_else(|| ended(Left::Early)) {
            // SAFETY: the core waits for orders, or is this one.
            let frame = unsafe { &*cpu.frame.get() };
            let call = frame.vector == u64::from(CALL);
            Ended::Trapped {
                core: cpu.index as u16,
                trap: frame.vector as u16,
                error: frame.error as u32,
                // A call that there is not is told by its number.
                address: match frame.vector {
                    _ if call => frame.rax,
                    14 => frame.address,
                    _ => 0,
                },
                instruction: frame.rip,
            }
        } else if ended(Left::Time).is_some() {
            Ended::Overran
        } else {
            let refused = |c: &&'static Cpu| refusal(c.status.load(Ordering::Relaxed));
            // The reason of the core that found it, before those that only followed.
            let all: ArrayVec<Refusal, MAX_CORES> = self.cpus.iter().filter_map(refused).collect();
            let first = all.iter().find(|&&r| r != Refusal::Aborted).or(all.first());
            return Ended::Finished(first.map_or(Ok(()), |&r| Err(r)));
        };
        self.unload();
        verdict
    }
}

/// Lets a core compute until it asks for the next step, traps, or its time is over.
pub fn run_core(cpu: &'static Cpu, apic: Apic, polite: bool, boundary: &mut dyn FnMut()) -> Left {
    // SAFETY: this core's frame, prepared by the judge.
    let deadline = unsafe { (*cpu.frame.get()).deadline };
    let arm = || apic.arm(clock::scale().micros(deadline.saturating_sub(clock::counter())) + 1);
    arm();
    loop {
        let frame = cpu.frame.get();
        // SAFETY: this core's frame, prepared by the judge; the session's tables are in use.
        unsafe { enter(frame) };
        cpu::round();
        // SAFETY: nobody else touches the frame until this core waits for orders.
        let frame = unsafe { &mut *frame };
        let left = match (frame.vector as u8, frame.rax) {
            (CALL, 0) if cpu.fresh.swap(0, Ordering::Relaxed) != 0 && frame.rdi as u32 == FRESH => {
                frame.rax = cpu.block.load(Ordering::Relaxed);
                continue;
            }
            (CALL, 0) => {
                cpu.status.store(frame.rdi as u32, Ordering::Relaxed);
                // SAFETY: the step's block, which lives as long as the step.
                let block = unsafe { &*(cpu.block.load(Ordering::Relaxed) as *const StepBlock) };
                let ended = block.progress.cores[cpu.index as usize].state.load(Ordering::Acquire) == state::ENDED;
                match frame.rdi as u32 {
                    DONE if ended => Left::Next,
                    status if refusal(status).is_some() => Left::Next,
                    _ => Left::Early,
                }
            }
            (CALL, 1) => {
                boundary();
                continue;
            }
            (CALL, 2) => {
                if polite {
                    smp::nap(apic, NAP);
                    arm();
                }
                continue;
            }
            (TIMER, _) => {
                apic.end();
                Left::Time
            }
            (WAKE, _) => continue,
            // Nothing that a program can do: the machine itself is unwell.
            (2 | 18, _) => panic!("{}", sensors::unwell(frame.vector)),
            _ => Left::Trap,
        };
        apic.disarm();
        return left;
    }
}
