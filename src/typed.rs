//! Typed queues: bodies that are serde values.

use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::delivery::{Delivery, Receive};
use crate::error::Result;
use crate::message::NewMessage;
use crate::queue::Queue;
use crate::record::{decode_body, encode_body};
use crate::types::MessageId;

/// How values become bodies.
pub trait BodyFormat {
    /// The body of a value.
    ///
    /// # Errors
    /// `InvalidInput` when the value cannot be encoded.
    fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>>;

    /// The value of a body, which must be used up.
    ///
    /// # Errors
    /// `InvalidInput` when it is not the body of such a value.
    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T>;
}

/// Bodies in bincode: small and fast, not self-describing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bincode;

impl BodyFormat for Bincode {
    fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
        encode_body(value)
    }

    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
        decode_body(body)
    }
}

/// Bodies in JSON: readable, and tolerant of added fields.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl BodyFormat for Json {
    fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
        serde_json::to_vec(value)
            .map_err(|e| crate::Error::invalid(format!("the value cannot be encoded as a body: {e}")))
    }

    fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
        serde_json::from_slice(body).map_err(|e| {
            crate::Error::invalid(format!("the body does not decode as {}: {e}", std::any::type_name::<T>()))
        })
    }
}

/// A queue whose bodies are values of type `T`; see [`Queue::typed`].
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # pollster::block_on(async {
/// # let store = reappear::Store::open(dir.path().join("jobs")).await?;
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Resize { file: String, width: u32 }
///
/// let resizes = store.queue("resizes")?.typed::<Resize>();
/// resizes.send(&Resize { file: "cat.png".into(), width: 128 }).await?;
/// if let Some(job) = resizes.receive().one().await? {
///     let resize = job.value()?;
///     println!("{} to {}", resize.file, resize.width);
///     job.ack().await?;
/// }
/// # store.close().await?;
/// # Ok::<(), reappear::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Typed<T, F = Bincode> {
    queue: Queue,
    types: PhantomData<fn() -> (T, F)>,
}

impl<T, F> Clone for Typed<T, F> {
    fn clone(&self) -> Self {
        Self::new(self.queue.clone())
    }
}

impl<T, F> Typed<T, F> {
    pub(crate) fn new(queue: Queue) -> Self {
        Self { queue, types: PhantomData }
    }

    /// The same queue, with JSON bodies.
    #[cfg(feature = "json")]
    #[must_use]
    pub fn json(self) -> Typed<T, Json> {
        Typed::new(self.queue)
    }

    /// The queue itself, for everything that has nothing to do with bodies.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Begins a receive.
    pub fn receive(&self) -> TypedReceive<T, F> {
        TypedReceive { receive: self.queue.receive(), types: PhantomData }
    }
}

impl<T: Serialize, F: BodyFormat> Typed<T, F> {
    /// Sends a value; see [`Queue::send`].
    ///
    /// # Errors
    /// As there, and `InvalidInput` for a value that cannot be encoded.
    pub async fn send(&self, value: &T) -> Result<MessageId> {
        self.queue.send(self.message(value)?).await
    }

    /// The message of a value, to add a priority, a delay or attributes, or for a batch.
    ///
    /// # Errors
    /// `InvalidInput` for a value that cannot be encoded.
    pub fn message(&self, value: &T) -> Result<NewMessage> {
        Ok(NewMessage::new(F::encode(value)?))
    }
}

/// A typed receive that is being put together.
#[derive(Debug)]
#[must_use = "nothing is received before one() or many() is called"]
pub struct TypedReceive<T, F = Bincode> {
    receive: Receive,
    types: PhantomData<fn() -> (T, F)>,
}

impl<T, F> TypedReceive<T, F> {
    /// As [`Receive::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { receive: self.receive.wait(wait), ..self }
    }

    /// As [`Receive::max`].
    pub fn max(self, max: usize) -> Self {
        Self { receive: self.receive.max(max), ..self }
    }

    /// As [`Receive::visibility`].
    pub fn visibility(self, visibility: Duration) -> Self {
        Self { receive: self.receive.visibility(visibility), ..self }
    }

    /// As [`Receive::one`].
    ///
    /// # Errors
    /// As there.
    pub async fn one(self) -> Result<Option<TypedDelivery<T, F>>> {
        Ok(self.receive.one().await?.map(TypedDelivery::new))
    }

    /// As [`Receive::many`].
    ///
    /// # Errors
    /// As there.
    pub async fn many(self) -> Result<Vec<TypedDelivery<T, F>>> {
        Ok(self.receive.many().await?.into_iter().map(TypedDelivery::new).collect())
    }
}

/// A delivery whose body is a value of type `T`. Everything else is the [`Delivery`]'s.
#[derive(Debug)]
pub struct TypedDelivery<T, F = Bincode> {
    delivery: Delivery,
    types: PhantomData<fn() -> (T, F)>,
}

impl<T, F> TypedDelivery<T, F> {
    fn new(delivery: Delivery) -> Self {
        Self { delivery, types: PhantomData }
    }

    /// The delivery without its type.
    #[must_use]
    pub fn into_inner(self) -> Delivery {
        self.delivery
    }
}

impl<T: DeserializeOwned, F: BodyFormat> TypedDelivery<T, F> {
    /// The body's value.
    ///
    /// # Errors
    /// `InvalidInput` when the body is not the encoding of a `T`. The message stays in flight:
    /// reject it, or let it reappear.
    pub fn value(&self) -> Result<T> {
        F::decode(self.delivery.body())
    }
}

impl<T, F> std::ops::Deref for TypedDelivery<T, F> {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

impl<T, F> crate::AsReceipt for TypedDelivery<T, F> {
    fn as_receipt(&self) -> crate::Receipt {
        self.delivery.receipt()
    }
}
