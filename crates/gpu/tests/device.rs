//! What the device refuses, and what must not matter.

mod common;

use cherenkov_format::{Bits, Encoding, Group, Matrix};
use cherenkov_gpu::{Error, GpuDevice, Options, Selection, SlabPath, adapters};
use cherenkov_model::device::{Device, Limits, PageId, SlotId};
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
        println!("{adapter}: {:?} {:?}", adapter.limits, adapter.features);
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
