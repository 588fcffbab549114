//! TLS, for the server and for the client of one.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The most certificates that are read from a file.
const CERTS_MAX: usize = 10_000;
/// Where systems keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read as what it should be.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The certificates and the key do not go together.
    #[error("the certificate and the key cannot be used: {0}")]
    Pair(rustls::Error),
    /// Nothing says whom to trust.
    #[error("no certificates to trust are found on this machine: name a file of them in WINDLASS_CA")]
    NoRoots,
    /// The name of a server is none.
    #[error("`{0}` is not a name that a certificate could be for")]
    Name(String),
}

/// What accepts TLS connections.
pub type Acceptor = TlsAcceptor;

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Says by what means clients of other libraries agree on keys: by the same as everybody here.
pub fn provide() {
    // The first one stays, and it is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unreadable = |why: String| Error::File { path: path.to_owned(), why };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
    let certs: Result<Vec<_>, _> = found.take(CERTS_MAX).collect();
    let certs = certs.map_err(|error| unreadable(error.to_string()))?;
    if certs.is_empty() {
        return Err(unreadable("there is no certificate in it".to_owned()));
    }
    Ok(certs)
}

/// Reads the certificates and the key of a server.
pub fn acceptor(chain: &Path, key: &Path) -> Result<Acceptor, Error> {
    let unreadable =
        |error: rustls::pki_types::pem::Error| Error::File { path: key.to_owned(), why: error.to_string() };
    let (chain, key) = (certs(chain)?, PrivateKeyDer::from_pem_file(key).map_err(unreadable)?);
    let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = config
        .map_err(Error::Pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(Error::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Agrees on keys with a client, in time.
pub async fn accept(
    acceptor: &Acceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()?.ok()
}

/// Whom a client trusts: those in a file, or those whom the system does.
///
/// # Errors
/// The file cannot be read, or nobody is trusted.
pub fn trusting(file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    let own = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.is_file());
    let path = file.map(Path::to_path_buf).or(own).or(known).ok_or(Error::NoRoots)?;
    // Some that a system trusts have forms that nobody else understands; they are passed over.
    let (added, _) = roots.add_parsable_certificates(certs(&path)?);
    if added == 0 {
        return Err(Error::NoRoots);
    }
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = config.map_err(Error::Pair)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The name under which a server has to show a certificate.
///
/// # Errors
/// It is none.
pub fn name_of(host: &str) -> Result<ServerName<'static>, Error> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).map_err(|_| Error::Name(host.to_owned()))
}

/// Agrees on keys with a server.
///
/// # Errors
/// It is not the one that it should be, or it does not answer.
pub async fn connect(
    config: &Arc<ClientConfig>,
    name: &ServerName<'static>,
    stream: TcpStream,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let connector = TlsConnector::from(config.clone());
    let connected = tokio::time::timeout(HANDSHAKE, connector.connect(name.clone(), stream)).await;
    connected.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}
