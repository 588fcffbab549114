//! A bucket of a service that speaks S3. The environment names the service and the credentials: `AWS_REGION`,
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, and `AWS_ENDPOINT_URL` if it is not Amazon's.
//!
//! Objects are created and never overwritten. Temporary failures are retried for a short time; after that the caller tries
//! again later.

use super::{Error, archive};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
};
use std::time::Duration;
use windlass_executor::tls;

/// How often a request is tried again, and for how long in all.
const RETRIES_MAX: usize = 4;
const RETRY_MAX: Duration = Duration::from_secs(15);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// A bucket, and the part of it that is ours.
pub struct Bucket {
    /// As it was named, with the prefix.
    name: String,
    prefix: Path,
    store: AmazonS3,
    /// Blocks the caller: bundles are made by threads that have nothing else to do.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // It may be dropped last on a thread that must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.name)
    }
}

impl Bucket {
    /// The bucket `bucket/prefix` of the service that the environment names.
    ///
    /// # Errors
    /// It has no name, or the environment says too little.
    pub fn open(named: &str) -> Result<Bucket, Error> {
        let named = named.trim_end_matches('/');
        let (bucket, prefix) = named.split_once('/').unwrap_or((named, ""));
        let unusable = |why: String| Error::Shelf {
            path: format!("s3://{named}"),
            why: format!(
                "{why}; set AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and name the bucket as `s3://bucket/prefix`"
            ),
        };
        if bucket.is_empty() {
            return Err(unusable("no bucket is named".to_owned()));
        }
        let prefix = Path::parse(prefix).map_err(|error| unusable(error.to_string()))?;
        let backoff = BackoffConfig { init_backoff: BACKOFF_FIRST, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_MAX };
        // Plain HTTP is for a service on this machine, or where the environment allows it.
        let endpoint = std::env::var("AWS_ENDPOINT_URL").or_else(|_| std::env::var("AWS_ENDPOINT"));
        let near = endpoint.is_ok_and(|url| {
            ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().any(|here| url.starts_with(here))
        });
        tls::provide();
        let options = ClientOptions::new().with_timeout(REQUEST_MAX).with_connect_timeout(BACKOFF_FIRST * 50);
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(retry);
        if near {
            builder = builder.with_allow_http(true);
        }
        let store = builder.build().map_err(|error| unusable(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        Ok(Bucket { name: format!("s3://{named}"), prefix, store, runtime: Some(runtime) })
    }

    /// Where an object is.
    #[must_use]
    pub fn location(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Waits for an answer.
    fn wait<T>(
        &self,
        asked: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, object_store::Error> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(asked),
            None => Err(object_store::Error::NotImplemented {
                operation: "asking".to_owned(),
                implementer: "a bucket that is closed".to_owned(),
            }),
        }
    }

    fn failed(&self, name: &str, error: &object_store::Error) -> Error {
        Error::Shelf { path: self.location(name), why: error.to_string() }
    }

    /// Whether there is an object.
    ///
    /// # Errors
    /// The service does not say.
    pub fn has(&self, name: &str) -> Result<bool, Error> {
        match self.wait(self.store.head(&self.path(name))) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(name, &error)),
        }
    }

    /// An object, where it is there.
    ///
    /// # Errors
    /// The service does not give it, or it is too large.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let got = self.wait(async {
            let found = self.store.get(&self.path(name)).await?;
            if found.meta.size > archive::LEN_MAX {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        });
        match got {
            Ok(Some(bytes)) => Ok(Some(bytes.to_vec())),
            Ok(None) => {
                Err(Error::Shelf { path: self.location(name), why: "it is larger than 1 GiB".to_owned() })
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(name, &error)),
        }
    }

    /// Makes an object where there is none, and says whether it did.
    ///
    /// # Errors
    /// What the service says.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, Error> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.path(name);
        let put = self.store.put_opts(&path, bytes.to_vec().into(), options);
        match self.wait(put) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed(name, &error)),
        }
    }

    /// Takes an object away, where it is there, and says whether it was.
    ///
    /// # Errors
    /// What the service says.
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        let there = self.has(name)?;
        match self.wait(self.store.delete(&self.path(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(there),
            Err(error) => Err(self.failed(name, &error)),
        }
    }
}
