//! Random matrices, and a definition of the product that knows nothing of the packed layout.
#![allow(dead_code, reason = "each test binary uses a part")]

use fp9::{COL_BLOCK, E4m3Source, Format, Matrix, SCALE_BLOCK, format};

/// SplitMix64: small, seeded, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Source codes in row-major order, with the packed form.
pub struct Sample {
    pub format: Format,
    pub rows: usize,
    pub k: usize,
    pub phase: usize,
    pub codes: Vec<u16>,
    pub data: Vec<u8>,
    pub scales: Vec<f32>,
}

impl Sample {
    /// Every finite code equally likely: one weight in 18 is an e4m3 subnormal.
    pub fn random(format: Format, rows: usize, k: usize, phase: usize, random: &mut Random) -> Sample {
        let mut e4m3 = vec![0u8; rows * k];
        for code in &mut e4m3 {
            *code = random.next() as u8;
            if *code & 0x7F == 0x7F {
                *code ^= 1;
            }
        }
        let mut data = vec![0; fp9::packed_len(format, rows, k).unwrap()];
        let codes = match format {
            Format::Bf16 => {
                let codes: Vec<u16> =
                    e4m3.iter().map(|&c| format::bf16::encode(format::e4m3::decode(c) * 0.37)).collect();
                fp9::pack_bf16(fp9::Bf16Source { codes: &codes, stride: k }, rows, k, &mut data).unwrap();
                codes
            }
            _ => {
                fp9::pack_e4m3(format, E4m3Source { codes: &e4m3, stride: k }, rows, k, &mut data).unwrap();
                let code = |&c: &u8| match format {
                    Format::Fp9 => format::s1e5m3::from_e4m3(c).unwrap(),
                    _ => c.into(),
                };
                e4m3.iter().map(code).collect()
            }
        };
        let scales = (0..fp9::scales_len(format, rows, k, phase)).map(|_| random.unit() * 1e-3).collect();
        Sample { format, rows, k, phase, codes, data, scales }
    }

    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.format, self.rows, self.k, &self.data, &self.scales, self.phase).unwrap()
    }

    pub fn scale(&self, row: usize, column: usize) -> f32 {
        if self.format == Format::Bf16 {
            return 1.0;
        }
        self.scales[(self.phase + row) / SCALE_BLOCK * self.k.div_ceil(SCALE_BLOCK) + column / SCALE_BLOCK]
    }

    pub fn weight(&self, row: usize, column: usize) -> f32 {
        self.format.decode(self.codes[row * self.k + column])
    }

    /// The README's definition, with the standard library's FMA and unscaled values: powers of two commute with
    /// rounding, so the factors must not show.
    pub fn row_by_definition(&self, row: usize, x: &[f32]) -> f32 {
        let mut total = 0f32;
        for block in (0..self.k).step_by(COL_BLOCK) {
            let mut sum = 0f32;
            let columns = block..(block + COL_BLOCK).min(self.k);
            for (column, &x) in columns.clone().zip(&x[columns]) {
                sum = self.weight(row, column).mul_add(x, sum);
            }
            total = sum.mul_add(self.scale(row, block), total);
        }
        total
    }

    /// The product in f64, and the sum of the terms' magnitudes.
    pub fn row_in_f64(&self, row: usize, x: &[f32]) -> (f64, f64) {
        let terms =
            (0..self.k).map(|c| f64::from(self.weight(row, c)) * f64::from(self.scale(row, c)) * f64::from(x[c]));
        terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
    }
}

pub const FORMATS: [Format; 3] = [Format::E4m3, Format::Fp9, Format::Bf16];
