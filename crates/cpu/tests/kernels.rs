//! The products: every instruction set against the written definition, bit for bit, and against f64.

mod common;

use cherenkov_cpu::kernels::quant::{Quantised, Shape};
use cherenkov_cpu::kernels::tile::{Dest, Product, Weights, multiply};
use cherenkov_cpu::kernels::{dense, quant};
use cherenkov_cpu::simd::{Arch, Isa, Op, Simd};
use cherenkov_cpu::threads::Cut;
use cherenkov_format::float::bf16_to_f32;
use cherenkov_format::{Bits, Encoding, Group, Matrix, tile16};
use common::{Random, same};

struct Fill<'a>(&'a mut Quantised, Shape, &'a [f32]);

impl Op for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.fill(s, self.1, self.2);
    }
}

fn arch(isa: Isa) -> Arch {
    Arch::new(isa).unwrap()
}

/// Quantises one group as the documentation says.
fn quantise(x: &[f32]) -> (f32, Vec<i32>) {
    let absmax = f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap());
    if !absmax.is_finite() {
        return (f32::NAN, vec![0; x.len()]);
    }
    if absmax < 1e-29 {
        return (0.0, vec![0; x.len()]);
    }
    let inverse = 127.0 / absmax;
    (absmax / 127.0, x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect())
}

/// One row of the product as the documentation says, and the sum of the products' magnitudes.
fn definition(m: &Matrix, x: &[f32]) -> Vec<f32> {
    let Encoding::Tile16 { bits, group } = m.view().encoding() else { panic!() };
    let (rows, groups, size) =
        (m.view().rows(), x.len() / group.get(), tile16::block_bytes(bits, group));
    let xs: Vec<_> = x.chunks(group.get()).map(quantise).collect();
    let mut codes = vec![0; group.get()];
    (0..rows)
        .map(|row| {
            let mut y = 0.0;
            for first in (0..groups).step_by(10) {
                let mut acc = 0f32;
                for (g, (sx, q)) in xs.iter().enumerate().skip(first).take(10) {
                    let block = &m.view().bytes()[(row / 16 * groups + g) * size..][..size];
                    let (s, b) = tile16::get_row(block, bits, group, row % 16, &mut codes);
                    let isum: i32 = codes.iter().zip(q).map(|(c, q)| i32::from(*c) * q).sum();
                    let xsum = q.iter().sum::<i32>() as f32;
                    let t = bf16_to_f32(s).mul_add(isum as f32, bf16_to_f32(b) * xsum);
                    acc = sx.mul_add(t, acc);
                }
                y += acc;
            }
            y
        })
        .collect()
}

fn product(isa: Isa, m: &Matrix, x: &[f32], parts: usize) -> Vec<f32> {
    product_to(isa, m, x, parts, Dest::From(0))
}

fn product_to(isa: Isa, m: &Matrix, x: &[f32], parts: usize, dest: Dest<'_>) -> Vec<f32> {
    let w = Weights::new(m.view()).unwrap();
    let rows = x.len() / w.cols;
    let shape = Shape { rows, cols: w.cols, group: w.group };
    let mut quantised = Quantised::default();
    arch(isa).run(Fill(&mut quantised, shape, x));
    let mut y = vec![f32::NAN; rows * w.rows];
    let cut = Cut::columns(&mut y, rows, 16, parts);
    for part in 0..parts {
        let panels = 0..rows.div_ceil(quant::PANEL);
        let (x, out) = (&quantised, &mut cut.take(part));
        multiply(arch(isa), Product { w, x, shape, panels, dest, out });
    }
    y
}

#[test]
fn every_instruction_set_follows_the_definition_bit_for_bit() {
    let mut r = Random(0x1234_5678);
    for turn in 0..160 {
        let bits = Bits::ALL[turn % 4];
        let group = if turn % 8 < 4 { Group::G64 } else { Group::G32 };
        let (outputs, cols) = (1 + r.below(70), group.get() * (1 + r.below(25)));
        let rows = if turn % 3 == 0 { 1 + r.below(8) } else { 1 + r.below(70) };
        let m = r.matrix(outputs, cols, Encoding::Tile16 { bits, group });
        let mut x = r.normals(rows * cols);
        if turn % 5 == 0 {
            x.iter_mut().step_by(7).for_each(|x| *x *= 1e4);
            x[..group.get()].fill(0.0);
        }
        let expected: Vec<f32> = x.chunks(cols).flat_map(|x| definition(&m, x)).collect();
        for isa in Isa::available() {
            let parts = 1 + r.below(4);
            let found = product(isa, &m, &x, parts);
            assert!(
                same(&found, &expected),
                "{} {bits:?} {group:?} {outputs}x{cols}, {rows} rows",
                isa.name()
            );
        }
    }
}

/// More than 128 rows take the blocked kernel's other way: tiles in pairs, eight at a time, their
/// outputs in a buffer. Odd numbers of tiles leave half a pair over; more than 512 rows take two blocks.
#[test]
fn many_rows_and_an_odd_number_of_tiles_follow_the_definition_bit_for_bit() {
    let mut r = Random(0xb10c);
    let shapes = [(9 * 16, 129), (8 * 16 + 5, 160), (11 * 16, 145), (17 * 16 - 3, 529)];
    for (turn, bits) in Bits::ALL.into_iter().enumerate() {
        for (i, group) in [Group::G64, Group::G32].into_iter().enumerate() {
            // Two whole segments of groups and the beginning of a third.
            let ((outputs, rows), cols) = (shapes[(turn + 3 * i) % 4], 21 * group.get());
            let m = r.matrix(outputs, cols, Encoding::Tile16 { bits, group });
            let x = r.normals(rows * cols);
            let expected: Vec<f32> = x.chunks(cols).flat_map(|x| definition(&m, x)).collect();
            let backwards: Vec<u32> = (0..rows as u32).rev().collect();
            let scattered: Vec<f32> = expected.chunks(outputs).rev().flatten().copied().collect();
            for isa in Isa::available() {
                let what =
                    format!("{} {bits:?} {group:?} {outputs}x{cols}, {rows} rows", isa.name());
                assert!(same(&product(isa, &m, &x, 1), &expected), "{what}");
                let found = product_to(isa, &m, &x, 1, Dest::Rows(&backwards));
                assert!(same(&found, &scattered), "{what}, scattered");
            }
        }
    }
}

#[test]
fn products_are_near_the_exact_ones() {
    let mut r = Random(77);
    for bits in [Bits::B4, Bits::B8] {
        let (outputs, cols, rows) = (64, 2560, 4);
        let m = r.matrix(outputs, cols, Encoding::Tile16 { bits, group: Group::G64 });
        let (w, x) = (m.view().to_f32(), r.normals(rows * cols));
        let y = product(Isa::detect(), &m, &x, 1);
        let (mut off, mut all) = (0.0, 0.0);
        for (row, x) in x.chunks(cols).enumerate() {
            for (o, w) in w.chunks(cols).enumerate() {
                let exact: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                off += (f64::from(y[row * outputs + o]) - exact).powi(2);
                all += exact.powi(2);
            }
        }
        let rms = (off / all).sqrt();
        println!("{bits:?}: relative error {rms:.2e}");
        assert!(rms < 0.012, "{bits:?}: {rms}");
    }
}

#[test]
fn infinities_and_nan_are_never_silently_finite() {
    let mut r = Random(5);
    for bits in Bits::ALL {
        let m = r.matrix(40, 256, Encoding::Tile16 { bits, group: Group::G64 });
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for rows in [1, 30] {
                let mut x = r.normals(rows * 256);
                x[200] = bad;
                for isa in Isa::available() {
                    let y = product(isa, &m, &x, 1);
                    assert!(y[..40].iter().all(|y| y.is_nan()), "{} {bits:?}", isa.name());
                    assert!(y[40..].iter().all(|y| y.is_finite()), "{} {bits:?}", isa.name());
                }
            }
        }
    }
}

/// The float product as the documentation says.
fn dense_definition(w: &[f32], x: &[f32]) -> f32 {
    let mut total = 0.0;
    for (w, x) in w.chunks(640).zip(x.chunks(640)) {
        let mut lanes = [0f32; 16];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            lanes[i % 16] = w.mul_add(*x, lanes[i % 16]);
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        total += lanes[0];
    }
    total
}

#[test]
fn float_products_follow_the_definition_bit_for_bit_and_are_near_the_exact_ones() {
    let mut r = Random(99);
    for turn in 0..60 {
        let encoding = [Encoding::F32, Encoding::Bf16][turn % 2];
        let (outputs, cols, rows) = (1 + r.below(40), 1 + r.below(1500), 1 + r.below(11));
        let m = r.matrix(outputs, cols, encoding);
        let (w, x) = (m.view().to_f32(), r.normals(rows * cols));
        let expected: Vec<f32> = x
            .chunks(cols)
            .flat_map(|x| w.chunks(cols).map(|w| dense_definition(w, x)).collect::<Vec<_>>())
            .collect();
        for (i, y) in expected.iter().enumerate() {
            let (w, x) = (&w[i % outputs * cols..][..cols], &x[i / outputs * cols..][..cols]);
            let products = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (exact, size) = products.fold((0.0, 0.0), |(e, s), p| (e + p, s + p.abs()));
            assert!((f64::from(*y) - exact).abs() <= 1e-5 * size);
        }
        for isa in Isa::available() {
            let mut y = vec![f32::NAN; rows * outputs];
            let parts = 1 + r.below(3);
            let cut = Cut::columns(&mut y, rows, 1, parts);
            for part in 0..parts {
                let (w, dest) = (dense::Weights::new(m.view()).unwrap(), Dest::From(0));
                arch(isa).run(dense::Product { w, x: &x, dest, out: &mut cut.take(part) });
            }
            assert!(
                same(&y, &expected),
                "{} {encoding:?} {outputs}x{cols}, {rows} rows",
                isa.name()
            );
        }
    }
}

struct Sums<'a>(&'a [[f32; 16]; 16]);

impl Op for Sums<'_> {
    /// Sixteen sums at once, and one by one.
    type Output = ([f32; 16], [f32; 16]);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut out = ([0.0; 16], [0.0; 16]);
        let mut all = [s.splat(0.0); 16];
        for (i, v) in self.0.iter().enumerate() {
            all[i] = s.load(v);
            out.1[i] = s.sum(all[i]);
        }
        s.store(s.sums(all), &mut out.0);
        out
    }
}

#[test]
fn sums_at_once_are_those_one_by_one() {
    let mut r = Random(7);
    for _ in 0..100 {
        let values: Vec<f32> = (0..256).map(|_| r.normal() * (r.unit() * 20.0).exp2()).collect();
        let mut rows = [[0.0; 16]; 16];
        rows.as_flattened_mut().copy_from_slice(&values);
        // Lane i with lane i+8, then i+4, i+2, i+1.
        let tree = |v: &[f32; 16]| {
            let mut v = *v;
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| v[i] += v[i + half]);
            }
            v[0]
        };
        let expected = rows.each_ref().map(tree);
        for isa in Isa::available() {
            let (at_once, singly) = arch(isa).run(Sums(&rows));
            assert!(same(&at_once, &expected) && same(&singly, &expected), "{}", isa.name());
        }
    }
}
