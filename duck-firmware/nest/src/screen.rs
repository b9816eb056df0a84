//! Lines of text on a screen of pixels: mini PCs have no serial port.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

const LETTER_HEIGHT: usize = 16;
const LETTER_WIDTH: usize = get_raster_width(FontWeight::Regular, RasterHeight::Size16);

/// Pixels in memory.
pub trait Pixels {
    /// Columns and lines.
    fn size(&self) -> (usize, usize);
    /// Sets one: grey from 0 to 255. Places beyond the size are never asked for.
    fn set(&mut self, x: usize, y: usize, grey: u8);
}

/// A screen of lines. When it is full it starts again at the top below the heading: pixels are slow to read, so nothing scrolls.
#[derive(Debug)]
pub struct Screen<P> {
    pixels: P,
    column: usize,
    row: usize,
    heading: usize,
}

impl<P: Pixels> Screen<P> {
    /// A black screen; the first `heading` lines are kept for [`Screen::head`].
    pub fn new(pixels: P, heading: usize) -> Screen<P> {
        let mut screen = Screen { pixels, column: 0, row: heading, heading };
        (0..screen.rows()).for_each(|row| screen.clear(row));
        screen
    }

    fn rows(&self) -> usize {
        self.pixels.size().1 / LETTER_HEIGHT
    }

    fn columns(&self) -> usize {
        self.pixels.size().0 / LETTER_WIDTH
    }

    /// Sets a line of the heading.
    pub fn head(&mut self, line: usize, text: &str) {
        if line < self.heading.min(self.rows()) {
            self.clear(line);
            for (column, letter) in text.chars().take(self.columns()).enumerate() {
                self.draw(column, line, letter);
            }
        }
    }

    /// Appends text.
    pub fn write(&mut self, text: &str) {
        for letter in text.chars() {
            if letter == '\n' || self.column == self.columns() {
                self.column = 0;
                self.row = if self.row + 1 < self.rows() { self.row + 1 } else { self.heading };
                self.clear(self.row);
                self.clear_next();
            }
            if letter != '\n' {
                self.draw(self.column, self.row, letter);
                self.column += 1;
            }
        }
    }

    /// An empty line marks where text goes on.
    fn clear_next(&mut self) {
        if self.row + 1 < self.rows() {
            self.clear(self.row + 1);
        }
    }

    fn clear(&mut self, row: usize) {
        let width = self.pixels.size().0;
        for y in row * LETTER_HEIGHT..((row + 1) * LETTER_HEIGHT).min(self.pixels.size().1) {
            (0..width).for_each(|x| self.pixels.set(x, y, 0));
        }
    }

    fn draw(&mut self, column: usize, row: usize, letter: char) {
        if row >= self.rows() {
            return;
        }
        let raster = |c| get_raster(c, FontWeight::Regular, RasterHeight::Size16);
        let Some(raster) = raster(letter).or_else(|| raster('?')) else { return };
        for (y, line) in raster.raster().iter().enumerate() {
            for (x, &grey) in line.iter().enumerate() {
                self.pixels.set(column * LETTER_WIDTH + x, row * LETTER_HEIGHT + y, grey);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Paper {
        width: usize,
        grey: Vec<u8>,
    }

    impl Pixels for Paper {
        fn size(&self) -> (usize, usize) {
            (self.width, self.grey.len() / self.width)
        }

        fn set(&mut self, x: usize, y: usize, grey: u8) {
            assert!(x < self.width);
            self.grey[y * self.width + x] = grey;
        }
    }

    fn screen(columns: usize, rows: usize) -> Screen<Paper> {
        let (width, height) = (columns * LETTER_WIDTH + 3, rows * LETTER_HEIGHT + 5);
        Screen::new(Paper { width, grey: vec![9; width * height] }, 1)
    }

    /// Which cells have ink.
    fn ink(screen: &Screen<Paper>) -> Vec<String> {
        let cell = |row: usize, column: usize| {
            let line =
                |y: usize| &screen.pixels.grey[y * screen.pixels.width..][column * LETTER_WIDTH..][..LETTER_WIDTH];
            (row * LETTER_HEIGHT..(row + 1) * LETTER_HEIGHT).any(|y| line(y).iter().any(|&g| g > 0))
        };
        let row = |row| (0..screen.columns()).map(|c| if cell(row, c) { '#' } else { '.' }).collect();
        (0..screen.rows()).map(row).collect()
    }

    #[test]
    fn text_wraps_and_starts_again_below_the_heading() {
        let mut screen = screen(4, 4);
        screen.head(0, "duck-01");
        screen.write("ab\ncdefg\n");
        assert_eq!(ink(&screen), ["####", "....", "....", "#..."], "the place to go on is cleared");
        screen.write("é x");
        assert_eq!(ink(&screen), ["####", "#.#.", "....", "#..."]);
    }

    #[test]
    fn a_screen_without_room_is_left_alone() {
        let mut screen = screen(0, 0);
        screen.head(0, "duck");
        screen.write("a\nb");
        assert!(ink(&screen).is_empty());
    }
}
