//! From a plugin's bytes, in whichever of three forms, to the bytes of a component.

use std::borrow::Cow;
use std::fmt;

use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmtime::{Engine, Module};
use wit_component::ComponentEncoder;

use super::LoadError;

/// The three forms of a plugin file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A component.
    Component,
    /// A core module that carries the metadata of a component.
    CoreModule,
    /// A core module for WASI 0.1, which a small adapter makes one for WASI 0.2.
    Preview1,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Component => "a component",
            Self::CoreModule => "a core module with component metadata",
            Self::Preview1 => "a core module for WASI 0.1",
        })
    }
}

/// The component that `bytes` are, or can be made.
pub(super) fn componentize<'b>(engine: &Engine, bytes: &'b [u8]) -> Result<(Form, Cow<'b, [u8]>), LoadError> {
    match bytes.get(..8) {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => {}
        Some([0, b'a', b's', b'm', ..]) => return Ok((Form::Component, bytes.into())),
        _ => return Err(LoadError("not WebAssembly: the file does not start with `\\0asm`".to_owned())),
    }
    let module = Module::validate(engine, bytes).and_then(|()| Ok(imports_and_exports(bytes)?));
    let (preview1, program) = module.map_err(|error| LoadError(format!("not a valid core module: {error:#}")))?;
    let form = if preview1 { Form::Preview1 } else { Form::CoreModule };
    let adapter = if program { WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER } else { WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER };
    let encoded = ComponentEncoder::default().module(bytes).and_then(|mut encoder| {
        if preview1 {
            encoder = encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter)?;
        }
        encoder.encode()
    });
    let encoded = encoded.map_err(|error| {
        LoadError(format!(
            "a core module that can't be made a component ({error:#}): build it for wasm32-wasip2, as a program for WASI 0.1 \
             (wasip1), or with wit-bindgen for wasm32-unknown-unknown"
        ))
    })?;
    Ok((form, encoded.into()))
}

/// Whether a module imports WASI 0.1, and whether it is a program with a `_start`.
fn imports_and_exports(bytes: &[u8]) -> Result<(bool, bool), wasmparser::BinaryReaderError> {
    use wasmparser::{Parser, Payload};
    let (mut preview1, mut program) = (false, false);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    preview1 |= import?.module == WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME;
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    program |= export?.name == "_start";
                }
            }
            _ => {}
        }
    }
    Ok((preview1, program))
}
