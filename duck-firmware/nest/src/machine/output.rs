//! Where lines go: the serial port, the screen, and, for warnings and errors, the host.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt::{self, Write};
use core::ptr::NonNull;

use arrayvec::ArrayString;
use log::{Level, LevelFilter, Log, Metadata, Record};
use nest::boot_info::Framebuffer;
use nest::screen::{Pixels, Screen};
use spin::Mutex;
use x86_64::instructions::port::Port;

use super::clock;

/// Lines of the heading: who, where, what.
pub const HEADING: usize = 4;
/// Lines that wait for the host.
const WAITING: usize = 16;
const PORT: u16 = 0x3f8;

static OUTPUT: Mutex<Output> = Mutex::new(Output { serial: None, screen: None, lines: None });

struct Output {
    serial: Option<Serial>,
    screen: Option<Screen<Surface>>,
    /// Once there is a heap.
    lines: Option<VecDeque<(u8, String)>>,
}

/// The first serial port.
struct Serial;

impl Serial {
    fn find() -> Option<Serial> {
        let (mut scratch, write) = (Port::<u8>::new(PORT + 7), |register, value| {
            // SAFETY: the first serial port's registers; nothing else answers there.
            unsafe { Port::<u8>::new(PORT + register).write(value) };
        });
        // SAFETY: as above.
        let there = unsafe {
            scratch.write(0x5a);
            scratch.read() == 0x5a
        };
        // No interrupts; 115,200 bits a second; eight bits; queues on; ready to send.
        for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 0xc7), (4, 3)] {
            write(register, value);
        }
        there.then_some(Serial)
    }
}

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (mut data, mut status) = (Port::<u8>::new(PORT), Port::<u8>::new(PORT + 5));
        for byte in text.bytes() {
            let mut looks = 0;
            // SAFETY: the port was found.
            unsafe {
                // A port that never gets ready must not stop the duck.
                while status.read() & 0x20 == 0 && looks < 100_000 {
                    looks += 1;
                }
                data.write(byte);
            }
        }
        Ok(())
    }
}

/// A screen's memory.
struct Surface {
    base: NonNull<u8>,
    shape: Framebuffer,
}

// SAFETY: the screen's memory is this value's alone.
unsafe impl Send for Surface {}

impl Pixels for Surface {
    fn size(&self) -> (usize, usize) {
        (self.shape.width as usize, self.shape.height as usize)
    }

    fn set(&mut self, x: usize, y: usize, grey: u8) {
        let (width, height) = self.size();
        assert!(x < width && y < height, "asked for pixels of the screen only");
        let at = y * self.shape.pitch as usize + x * usize::from(self.shape.pixel);
        // SAFETY: inside the screen's memory, which is as long as its shape says; lines of four bytes a pixel start at multiples of four.
        unsafe {
            let pixel = self.base.as_ptr().add(at);
            match self.shape.pixel {
                4 if pixel.cast::<u32>().is_aligned() => {
                    pixel.cast::<u32>().write_volatile(u32::from(grey) * 0x01_0101)
                }
                _ => (0..3).for_each(|byte| pixel.add(byte).write_volatile(grey)),
            }
        }
    }
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let now = clock::now();
        let mut line = ArrayString::<240>::new();
        // What is longer is cut.
        let _ = write!(line, "{:5}.{:03} ", now / 1_000_000, now / 1_000 % 1_000);
        let start = line.len();
        let _ = write!(Cut(&mut line), "{}", record.args());
        let mut output = OUTPUT.lock();
        output.write(&line);
        output.write("\n");
        let level = match record.level() {
            Level::Error => 0,
            Level::Warn => 1,
            _ => return,
        };
        if let Some(lines) = output.lines.as_mut().filter(|l| l.len() < WAITING) {
            lines.push_back((level, String::from(&line[start..])));
        }
    }

    fn flush(&self) {}
}

/// Takes what fits.
struct Cut<'a, const N: usize>(&'a mut ArrayString<N>);

impl<const N: usize> Write for Cut<'_, N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(self.0.remaining_capacity());
        self.0.push_str(&text[..end]);
        Ok(())
    }
}

impl Output {
    fn write(&mut self, text: &str) {
        if let Some(serial) = &mut self.serial {
            for part in text.split_inclusive('\n') {
                let _ = serial.write_str(part.trim_end_matches('\n'));
                if part.ends_with('\n') {
                    let _ = serial.write_str("\r\n");
                }
            }
        }
        if let Some(screen) = &mut self.screen {
            screen.write(text);
        }
    }
}

/// Lines go to the serial port from now on.
pub fn start() {
    OUTPUT.lock().serial = Serial::find();
    // It fails only when there is a logger already.
    let _ = log::set_logger(&Logger);
    log::set_max_level(LevelFilter::Info);
}

/// Warnings and errors are kept for the host from now on; there is a heap.
pub fn keep() {
    OUTPUT.lock().lines = Some(VecDeque::with_capacity(WAITING));
}

/// The oldest line that the host was not told.
pub fn next() -> Option<(u8, String)> {
    OUTPUT.lock().lines.as_mut()?.pop_front()
}

/// Lines go to the screen, too. `base`: its memory.
///
/// # Safety
/// It is mapped, as long as the shape says, and nobody else's.
pub unsafe fn show(base: NonNull<u8>, shape: Framebuffer) {
    OUTPUT.lock().screen = Some(Screen::new(Surface { base, shape }, HEADING));
}

/// Sets a line of the screen's heading.
pub fn head(line: usize, text: fmt::Arguments<'_>) {
    if let Some(screen) = &mut OUTPUT.lock().screen {
        let mut buffer = ArrayString::<128>::new();
        let _ = Cut(&mut buffer).write_fmt(text);
        screen.head(line, &buffer);
    }
}

/// Writes a panic's text, also when it came in the middle of a line.
pub fn last(text: &str) {
    // SAFETY: nothing goes on after a panic, so whoever holds the lock will not use what it guards again.
    unsafe { OUTPUT.force_unlock() };
    OUTPUT.lock().write(text);
}
