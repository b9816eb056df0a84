//! TLS at both ends: a certificate for the server, whom to trust for the client.

use std::path::PathBuf;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be used.
    #[error("cannot use {} for TLS: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificate and key do not fit.
    #[error("cannot use the TLS certificate {} with the key {}: {reason}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nobody to trust.
    #[error("this system lists no certificate authorities; name a file with --ca")]
    NoRoots,
    /// A name that no certificate can have.
    #[error("{name:?} is no name that a certificate could be for")]
    Name {
        /// The name.
        name: String,
    },
    /// Built without TLS.
    #[error("this program was built without TLS; build it with the feature tls")]
    NotBuilt,
}

#[cfg(feature = "tls")]
pub use with::{Tls, client};
#[cfg(not(feature = "tls"))]
pub use without::Tls;

#[cfg(feature = "tls")]
mod with {
    use std::path::Path;
    use std::sync::Arc;

    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::TlsError;

    /// The server's end.
    #[derive(Clone)]
    pub struct Tls(TlsAcceptor);

    fn provider() -> Arc<crypto::CryptoProvider> {
        Arc::new(crypto::ring::default_provider())
    }

    fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let fault = |reason: String| TlsError::File { path: path.to_owned(), reason };
        let found = CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))?;
        let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| fault(error.to_string()))?;
        if found.is_empty() { Err(fault("there is no certificate in it".to_owned())) } else { Ok(found) }
    }

    impl Tls {
        /// A certificate chain and its key, both PEM.
        ///
        /// # Errors
        /// [`TlsError`].
        pub fn open(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
            let chain = certificates(certificate)?;
            let secret = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| TlsError::File { path: key.to_owned(), reason: error.to_string() })?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
            let mut config = config.map_err(|error| TlsError::Pair {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                reason: error.to_string(),
            })?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Tls(TlsAcceptor::from(Arc::new(config))))
        }

        /// The handshake.
        ///
        /// # Errors
        /// The other end's mistakes.
        pub async fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
            &self,
            stream: S,
        ) -> std::io::Result<tokio_rustls::server::TlsStream<S>> {
            self.0.accept(stream).await
        }
    }

    /// The client's end, trusting the authorities in a PEM file, or else the system's, and the name to check.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn client(authorities: Option<&Path>, name: &str) -> Result<(TlsConnector, ServerName<'static>), TlsError> {
        let mut roots = RootCertStore::empty();
        match authorities {
            Some(path) => drop(roots.add_parsable_certificates(certificates(path)?)),
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        if roots.is_empty() {
            return Err(TlsError::NoRoots);
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|_| TlsError::NotBuilt)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name { name: name.to_owned() })?;
        Ok((TlsConnector::from(Arc::new(config)), server))
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::path::Path;

    use super::TlsError;

    /// There is none.
    #[derive(Clone)]
    pub enum Tls {}

    impl Tls {
        /// Always an error.
        ///
        /// # Errors
        /// [`TlsError::NotBuilt`].
        pub fn open(_: &Path, _: &Path) -> Result<Tls, TlsError> {
            Err(TlsError::NotBuilt)
        }

        /// Never called.
        ///
        /// # Errors
        /// None.
        pub async fn accept<S>(&self, _: S) -> std::io::Result<S> {
            match *self {}
        }
    }
}
