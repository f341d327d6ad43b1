//! Every kernel is valid, in every shading language, and its parameters are what the host sends.

use cherenkov_gpu::ParamPath;
use cherenkov_gpu::kernels::{Access, Kernel, samples};
use cherenkov_gpu::params::Scalar;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

const PATHS: [ParamPath; 2] = [ParamPath::Immediate, ParamPath::Uniform];

fn checked(kernel: Kernel, path: ParamPath) -> (naga::Module, ModuleInfo) {
    let source = kernel.source(path);
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| panic!("{kernel:?}: {}\n{source}", e.emit_to_string(&source)));
    let arrays = Capabilities::STORAGE_BUFFER_BINDING_ARRAY
        | Capabilities::STORAGE_BUFFER_BINDING_ARRAY_NON_UNIFORM_INDEXING;
    let capabilities = Capabilities::IMMEDIATES | arrays;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    let info = validator
        .validate(&module)
        .unwrap_or_else(|e| panic!("{kernel:?}: {}\n{source}", e.emit_to_string(&source)));
    (module, info)
}

fn shared_bytes(module: &naga::Module) -> u32 {
    let shared =
        module.global_variables.iter().filter(|(_, g)| g.space == naga::AddressSpace::WorkGroup);
    shared.map(|(_, g)| module.types[g.ty].inner.size(module.to_ctx())).sum()
}

#[test]
fn every_kernel_is_valid_in_every_language() {
    for kernel in samples() {
        for path in PATHS {
            let (module, info) = checked(kernel, path);
            assert!(shared_bytes(&module) <= 16 << 10, "{kernel:?} shares too much memory");
            let spirv = spv::write_vec(&module, &info, &spv::Options::default(), None);
            assert!(!spirv.expect("SPIR-V").is_empty());
            // Arrays of buffers are Vulkan's; other adapters get the variants without.
            if kernel.slabs() > 1 {
                continue;
            }
            let options = msl::Options { fake_missing_bindings: true, ..Default::default() };
            let (text, _) = msl::write_string(&module, &info, &options, &Default::default())
                .unwrap_or_else(|e| panic!("{kernel:?} in MSL: {e}"));
            assert!(text.contains("kernel void"), "{kernel:?}");
            let mut text = String::new();
            let options = hlsl::Options {
                fake_missing_bindings: true,
                immediates_target: Some(hlsl::BindTarget::default()),
                ..Default::default()
            };
            let pipeline = hlsl::PipelineOptions::default();
            let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
            writer
                .write(&module, &info, None)
                .unwrap_or_else(|e| panic!("{kernel:?} in HLSL: {e}"));
            assert!(text.contains("numthreads"), "{kernel:?}");
        }
    }
}

#[test]
fn hosts_and_kernels_agree_on_parameters_and_buffers() {
    for kernel in samples() {
        let (module, _) = checked(kernel, ParamPath::Immediate);
        let (_, params) = module
            .types
            .iter()
            .find(|(_, t)| t.name.as_deref() == Some("P"))
            .unwrap_or_else(|| panic!("{kernel:?} has no parameters"));
        let naga::TypeInner::Struct { members, span } = &params.inner else {
            panic!("{kernel:?}: P is no struct")
        };
        assert!(*span <= 128, "{kernel:?}: more parameters than any adapter promises");
        let found: Vec<_> = members
            .iter()
            .map(|m| {
                let scalar = match module.types[m.ty].inner {
                    naga::TypeInner::Scalar(naga::Scalar::U32) => Scalar::U32,
                    naga::TypeInner::Scalar(naga::Scalar::F32) => Scalar::F32,
                    ref other => panic!("{kernel:?}: parameter of type {other:?}"),
                };
                (m.name.clone().unwrap(), m.offset, scalar)
            })
            .collect();
        let expected: Vec<_> = kernel
            .fields()
            .iter()
            .enumerate()
            .map(|(i, &(name, scalar))| (name.to_owned(), 4 * i as u32, scalar))
            .collect();
        assert_eq!(found, expected, "{kernel:?}");
        check_buffers(kernel, &module);
    }
}

fn check_buffers(kernel: Kernel, module: &naga::Module) {
    let mut found: Vec<_> = module
        .global_variables
        .iter()
        .filter_map(|(_, g)| {
            let binding = g.binding?;
            assert_eq!(binding.group, 0, "{kernel:?}");
            let naga::AddressSpace::Storage { access } = g.space else {
                panic!("{kernel:?}: {:?}", g.space)
            };
            let writes = access.contains(naga::StorageAccess::STORE);
            Some((binding.binding, if writes { Access::Write } else { Access::Read }))
        })
        .collect();
    found.sort_unstable_by_key(|b| b.0);
    let expected: Vec<_> =
        kernel.access().iter().enumerate().map(|(i, &a)| (i as u32, a)).collect();
    assert_eq!(found, expected, "{kernel:?}");
}
