//! What the device refuses, and what must not matter.

mod common;

use cherenkov_experts::{Bank, Grade, Slot, Wave};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::{Bits, Encoding, Group, Matrix};
use cherenkov_gpu::{
    Error, GpuDevice, MoeActs, MoeWeights, Options, Selection, SlabPath, adapters,
};
use cherenkov_model::device::{Device, Limits, PageId, Recall, Shared, SlotId, TopkNorm};
use cherenkov_model::{Batch, Keep};
use common::Runner;

/// The devices of this machine, or a line that says how many checks there were none for.
fn devices(name: &str, checks: usize, options: Options) -> Vec<GpuDevice> {
    let adapters = adapters();
    if adapters.is_empty() {
        println!("no adapter: {checks} checks not run ({name})");
    }
    let open = |adapter: &cherenkov_gpu::AdapterInfo| {
        GpuDevice::new(&Selection::Named(adapter.name.clone()), options).unwrap()
    };
    adapters.iter().map(open).collect()
}

const LIMITS: Limits = Limits { rows: 8, slots: 2, pages: 4, page_rows: 16 };

fn batch(tokens: &[u32]) -> Batch {
    let mut batch = Batch::default();
    batch.push(SlotId(0), 0, tokens, &[PageId(0)], Keep::All);
    batch
}

fn tiles(rows: usize, cols: usize) -> Matrix {
    let encoding = Encoding::Tile16 { bits: Bits::B4, group: Group::G32 };
    let mut bytes = vec![0u8; encoding.byte_len(rows, cols).unwrap()];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // Small scales and biases in the headers, any codes.
        *byte = if i % 320 < 64 && i % 2 == 1 { 0x3c } else { (i * 31 % 251) as u8 };
    }
    Matrix::new(rows, cols, encoding, bytes).unwrap()
}

#[test]
fn an_adapter_that_is_not_there_is_named() {
    let selection = Selection::Named("no such adapter".into());
    let error = GpuDevice::new(&selection, Options::new(1e-6)).unwrap_err();
    assert!(matches!(error, Error::NoAdapter { .. }));
    let text = error.to_string();
    assert!(text.contains("no such adapter") && text.contains("install"), "{text}");
}

#[test]
fn adapters_describe_themselves() {
    for adapter in adapters() {
        let (limits, features) = (adapter.limits, adapter.features);
        println!("{adapter}: {limits:?} {features:?} {:?} bytes", adapter.memory_bytes);
        assert!(!adapter.name.is_empty() && adapter.limits.binding_bytes >= 128 << 20);
    }
}

#[test]
fn a_device_can_go_to_another_thread() {
    fn check<T: Send>() {}
    check::<GpuDevice>();
    check::<<GpuDevice as Device>::Bank>();
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    for mut device in devices("misuse", 8, Options::new(1e-6)) {
        let w = device.matrix(tiles(16, 32)).unwrap();
        let norm = device.vector(&[1.0; 32]).unwrap();
        let (x, out, wide) = (device.act(32), device.act(16), device.act(64));
        device.allocate(LIMITS).unwrap();
        device.begin(&batch(&[1, 2])).unwrap();
        let told = |result: cherenkov_model::Result<()>| result.unwrap_err().to_string();
        assert!(told(device.linear(&w, wide, x)).contains("product"));
        assert!(told(device.linear(&w, x, wide)).contains("product"));
        assert!(told(device.norm(&norm, 1, wide, x)).contains("norm"));
        assert!(told(device.repeat(x, out)).contains("repeat"));
        assert!(told(device.put(x, &[0.0; 3])).contains("found 3 values, expected 64"));
        assert!(told(device.begin(&batch(&[0; 9]))).contains("9 rows, room is for 8"));
        device.begin(&batch(&[1, 16])).unwrap();
        assert!(told(device.embed(&w, x)).contains("token 16 of a table of 16 rows"));
        assert!(told(device.reset_slot(SlotId(2))).contains("slot 2 of 2"));
        // After all that the device still works.
        device.put(x, &[1.0; 64]).unwrap();
        device.linear(&w, x, out).unwrap();
        assert!(device.fetch(out).unwrap().iter().all(|v| v.is_finite()));
    }
}

#[test]
fn what_is_too_large_is_said_so() {
    let options = Options { buffer_bytes: Some(1 << 16), ..Options::new(1e-6) };
    for mut device in devices("sizes", 1, options) {
        device.act(1 << 15);
        let text = device.allocate(LIMITS).unwrap_err().to_string();
        assert!(text.contains("activations takes 1048576 bytes"), "{text}");
        assert!(text.contains("at most 65536"), "{text}");
    }
}

/// Products and rows of a matrix that lies in several buffers.
#[test]
fn the_cut_of_a_matrix_changes_no_bit() {
    let run = |mut device: GpuDevice| {
        let w = device.matrix(tiles(200, 128)).unwrap();
        let (x, rows, out) = (device.act(128), device.act(128), device.act(200));
        device.allocate(LIMITS).unwrap();
        device.begin(&batch(&[0, 95, 96, 199])).unwrap();
        device.embed(&w, rows).unwrap();
        let values: Vec<f32> = (0..4 * 128).map(|i| (i % 13) as f32 - 6.0).collect();
        device.put(x, &values).unwrap();
        device.linear(&w, x, out).unwrap();
        let mut all = device.fetch(rows).unwrap();
        all.extend(device.fetch(out).unwrap());
        all.extend(device.logits(&w, x, &[2, 0]).unwrap());
        all
    };
    let whole = devices("parts", 1, Options::new(1e-6));
    // Six strips of 16 rows fit into a buffer.
    let small = Options { buffer_bytes: Some(8192), ..Options::new(1e-6) };
    for (whole, cut) in whole.into_iter().zip(devices("parts", 0, small)) {
        assert_eq!(run(whole), run(cut));
    }
}

#[test]
fn the_cut_of_a_bank_changes_no_bit() {
    let packed = common::usual("base");
    let (_, ids) = &common::random_prompts("base")[3];
    let plain = Options::new(packed.store.config().eps);
    let small = Options { slab_bytes: 10_000, ..plain };
    let each = Options { slabs: SlabPath::Each, ..small };
    let run = |device| Runner::new(device, &packed, 6).chunks(ids, 5);
    let expected: Vec<_> = devices("slabs", 2, plain).into_iter().map(run).collect();
    for options in [small, each] {
        let found: Vec<_> = devices("slabs", 0, options).into_iter().map(run).collect();
        assert!(found == expected, "{options:?}");
    }
}

/// Routes that never come to the host lead to the same bits.
#[test]
fn resident_experts_change_no_bit() {
    const H: usize = 64;
    const EXPERTS: usize = 7;
    let encoding = Encoding::Tile16 { bits: Bits::B4, group: Group::G32 };
    let layout = RecordLayout::new(H, 32, encoding, encoding).unwrap();
    for mut d in devices("resident experts", 2, Options::new(1e-6)) {
        let router: Vec<f32> =
            (0..EXPERTS * H).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let router = d.matrix(Matrix::from_f32(EXPERTS, H, &router)).unwrap();
        let shared = Shared {
            gate_proj: d.matrix(tiles(32, H)).unwrap(),
            up_proj: d.matrix(tiles(32, H)).unwrap(),
            down_proj: d.matrix(tiles(H, 32)).unwrap(),
            gate: d.matrix(tiles(1, H)).unwrap(),
        };
        let (x, y) = (d.act(H), d.act(H));
        let acts = MoeActs { x, parts: d.act(3 * H), shared: d.act(H), out: d.act(H) };
        d.allocate(Limits { rows: 12, ..LIMITS }).unwrap();
        let mut bank = d.bank(EXPERTS, &layout.into()).unwrap();
        // Expert e lies in slot 6 - e.
        let slots: Vec<Slot> = (0..EXPERTS as u32).rev().map(Slot).collect();
        for (e, &slot) in slots.iter().enumerate() {
            let mut landing = bank.land(slot);
            for which in [Projection::Gate, Projection::Up, Projection::Down] {
                let (at, len) = layout.span(which);
                let (rows, cols, _) = layout.shape(which);
                landing.as_mut()[at..at + len].copy_from_slice(tiles(rows, cols).view().bytes());
                landing.as_mut()[at + 70] ^= e as u8;
            }
            bank.publish(slot, landing);
        }
        let residency = d.residency(&bank, &slots).unwrap();
        let (k, norm) = (3, TopkNorm::Sum);
        for rows in [1, 8, 12] {
            d.begin(&batch(&vec![0; rows])).unwrap();
            let values: Vec<f32> =
                (0..rows * H).map(|i| (i * i % 97) as f32 / 40.0 - 1.2).collect();
            d.put(x, &values).unwrap();
            let w = MoeWeights { router: &router, k, norm, shared: &shared };
            d.resident_moe(&bank, &residency, w, acts).unwrap();
            let found = d.fetch(acts.out).unwrap();
            let routes = d.route(&router, k, norm, x).unwrap();
            let experts = routes.distinct();
            let slots = experts.iter().map(|&e| slots[e as usize]).collect();
            let grades = vec![Grade::Full; experts.len()];
            let wave = Wave { layer: 0, experts, slots, grades };
            d.experts(&bank, &wave, &routes, x, acts.parts).unwrap();
            d.shared_expert(&shared, x, acts.shared).unwrap();
            d.combine(&routes, acts.parts, acts.shared, y).unwrap();
            assert_eq!(found, d.fetch(y).unwrap(), "{rows} rows");
            assert!(found.iter().all(|v| v.is_finite()));
        }
    }
}

/// A hyper-connection's write is done with the read that follows, or before anyone looks.
#[test]
fn a_write_that_waits_is_never_missed() {
    for mut d in devices("waiting writes", 4, Options::new(1e-6)) {
        let (y, gate, stream, copy) = (d.act(8), d.act(2), d.act(16), d.act(16));
        let lane = d.row_lane(16, 1);
        let ones = d.vector(&[1.0; 16]).unwrap();
        d.allocate(LIMITS).unwrap();
        // A stream of ones gains 2 * 3 and 4 * 3.
        let start = |d: &mut GpuDevice| {
            d.begin(&batch(&[0])).unwrap();
            d.put(y, &[3.0; 8]).unwrap();
            d.put(gate, &[2.0, 4.0]).unwrap();
            d.put(stream, &[1.0; 16]).unwrap();
            d.hyper_write(y, gate, stream).unwrap();
        };
        let expected = [[7.0; 8], [13.0; 8]].concat();
        start(&mut d);
        assert_eq!(d.fetch(stream).unwrap(), expected, "read at once");
        start(&mut d);
        d.put(y, &[0.0; 8]).unwrap();
        d.put(gate, &[0.0; 2]).unwrap();
        assert_eq!(d.fetch(stream).unwrap(), expected, "read after its operands changed");
        start(&mut d);
        d.begin(&batch(&[0])).unwrap();
        assert_eq!(d.fetch(stream).unwrap(), expected, "read in the next pass");
        start(&mut d);
        d.keep(lane, stream).unwrap();
        d.put(stream, &[0.0; 16]).unwrap();
        let kept = Recall::Kept { slot: SlotId(0), index: 0 };
        d.recall(lane, stream, &[kept], copy).unwrap();
        assert_eq!(d.fetch(copy).unwrap(), expected, "kept, then overwritten");
        start(&mut d);
        d.norm(&ones, 2, stream, copy).unwrap();
        assert!(d.fetch(copy).unwrap().iter().all(|v| (v - 1.0).abs() < 1e-6), "normed");
    }
}
