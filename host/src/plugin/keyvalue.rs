//! `wasi:keyvalue`: the role's fenced state, as the standard interface has it.

use wasmtime::component::Resource;

use self::bindings::wasi::keyvalue::{atomics, batch, store};
use super::imports::Guest;
use crate::state::{StateError, StateOp, StateReply};

/// What `bindgen!` makes of the standard's interfaces.
pub(super) mod bindings {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    wasmtime::component::bindgen!({
        inline: "
            package tenure:host;
            world keyvalue {
                import wasi:keyvalue/store@0.2.0-draft;
                import wasi:keyvalue/atomics@0.2.0-draft;
                import wasi:keyvalue/batch@0.2.0-draft;
            }
        ",
        path: "../guest-sdk/wit",
        world: "tenure:host/keyvalue",
        imports: { default: async | trappable },
        with: { "wasi:keyvalue/store.bucket": super::Bucket },
        trappable_error_type: { "wasi:keyvalue/store.error" => super::Failure },
    });
}

/// A role has one bucket.
#[allow(unreachable_pub, reason = "the generated module exports it again")]
pub struct Bucket;

/// The bucket's name. The empty name means it too.
const BUCKET: &str = "default";

/// An error for the guest, or a bug of the guest's that is a trap.
#[allow(unreachable_pub, reason = "the generated module exports it again")]
pub enum Failure {
    /// For the guest to deal with.
    Told(store::Error),
    /// A handle that is none.
    Trap(wasmtime::Error),
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::Told(match error {
            StateError::Fenced { .. } => store::Error::AccessDenied,
            StateError::Refused(_) | StateError::Unavailable(_) => store::Error::Other(error.to_string()),
        })
    }
}

impl From<wasmtime::component::ResourceTableError> for Failure {
    fn from(error: wasmtime::component::ResourceTableError) -> Self {
        Self::Trap(error.into())
    }
}

/// The answer to one operation is never that to another: the store would be broken.
fn unexpected(reply: &StateReply) -> Failure {
    StateError::Unavailable(format!("the store gave an answer to another question: {reply:?}")).into()
}

impl Guest {
    async fn ask(&mut self, bucket: &Resource<Bucket>, op: StateOp) -> Result<StateReply, Failure> {
        self.table.get(bucket)?;
        match &self.seat.state {
            Some(state) => Ok(state.run(&op).await?),
            // Not linked where it was not granted, so this is never asked.
            None => Err(Failure::Told(store::Error::NoSuchStore)),
        }
    }

    async fn change(&mut self, bucket: &Resource<Bucket>, op: StateOp) -> Result<(), Failure> {
        match self.ask(bucket, op).await? {
            StateReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn values(&mut self, bucket: &Resource<Bucket>, keys: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        match self.ask(bucket, StateOp::Get(keys)).await? {
            StateReply::Values(values) => Ok(values),
            other => Err(unexpected(&other)),
        }
    }
}

impl store::Host for Guest {
    async fn open(&mut self, identifier: String) -> Result<Resource<Bucket>, Failure> {
        match identifier.as_str() {
            "" | BUCKET => Ok(self.table.push(Bucket)?),
            _ => Err(Failure::Told(store::Error::NoSuchStore)),
        }
    }

    fn convert_error(&mut self, failure: Failure) -> wasmtime::Result<store::Error> {
        match failure {
            Failure::Told(error) => Ok(error),
            Failure::Trap(error) => Err(error),
        }
    }
}

impl store::HostBucket for Guest {
    async fn get(&mut self, bucket: Resource<Bucket>, key: String) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.values(&bucket, vec![key]).await?.into_iter().next().flatten())
    }

    async fn set(&mut self, bucket: Resource<Bucket>, key: String, value: Vec<u8>) -> Result<(), Failure> {
        self.change(&bucket, StateOp::Set([(key, value)].into())).await
    }

    async fn delete(&mut self, bucket: Resource<Bucket>, key: String) -> Result<(), Failure> {
        self.change(&bucket, StateOp::Delete(vec![key])).await
    }

    async fn exists(&mut self, bucket: Resource<Bucket>, key: String) -> Result<bool, Failure> {
        match self.ask(&bucket, StateOp::Exists(key)).await? {
            StateReply::Found(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_keys(
        &mut self,
        bucket: Resource<Bucket>,
        cursor: Option<u64>,
    ) -> Result<store::KeyResponse, Failure> {
        match self.ask(&bucket, StateOp::Keys(cursor)).await? {
            StateReply::Keys { keys, cursor } => Ok(store::KeyResponse { keys, cursor }),
            other => Err(unexpected(&other)),
        }
    }

    async fn drop(&mut self, bucket: Resource<Bucket>) -> wasmtime::Result<()> {
        self.table.delete(bucket)?;
        Ok(())
    }
}

impl atomics::Host for Guest {
    async fn increment(&mut self, bucket: Resource<Bucket>, key: String, delta: u64) -> Result<u64, Failure> {
        match self.ask(&bucket, StateOp::Increment { key, delta }).await? {
            StateReply::Number(sum) => Ok(sum),
            other => Err(unexpected(&other)),
        }
    }
}

impl batch::Host for Guest {
    async fn get_many(
        &mut self,
        bucket: Resource<Bucket>,
        keys: Vec<String>,
    ) -> Result<Vec<Option<(String, Vec<u8>)>>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let values = self.values(&bucket, keys.clone()).await?;
        Ok(keys.into_iter().zip(values).map(|(key, value)| value.map(|value| (key, value))).collect())
    }

    async fn set_many(&mut self, bucket: Resource<Bucket>, entries: Vec<(String, Vec<u8>)>) -> Result<(), Failure> {
        if entries.is_empty() {
            return Ok(());
        }
        self.change(&bucket, StateOp::Set(entries.into_iter().collect())).await
    }

    async fn delete_many(&mut self, bucket: Resource<Bucket>, keys: Vec<String>) -> Result<(), Failure> {
        if keys.is_empty() {
            return Ok(());
        }
        self.change(&bucket, StateOp::Delete(keys)).await
    }
}
