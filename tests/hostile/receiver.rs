//! Receivers that misbehave, each in a way of its own, on loopback ports of their own.
//!
//! They are tasks of one small runtime, so that hundreds of them with thousands of connections take no threads.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Between two bytes of one that drips.
const DRIP: Duration = Duration::from_secs(10);
/// How much the large ones would send.
const HEADERS: usize = 100 << 20;
const GIGABYTE: usize = 1 << 30;

/// How a receiver misbehaves, once it has heard a request.
#[derive(Clone, Debug)]
pub enum Manner {
    /// Nobody listens.
    Refuses,
    /// Says nothing.
    Silent,
    /// Says a byte of its answer's head every ten seconds.
    DripsHead,
    /// Says its head, and then a byte of the body every ten seconds.
    DripsBody,
    /// Answers with this status and a body without an end.
    Endless(u16),
    /// Answers with a body of a gigabyte.
    Gigabyte,
    /// Answers with a small body that is large when it is unpacked.
    Bomb,
    /// Answers with headers for ever.
    Headers,
    /// Speaks something else.
    Nonsense,
    /// The same, and speaks first.
    Greets,
    /// Closes in the middle of its body.
    ClosesMidway,
    /// Closes instead of answering.
    HangsUp,
    /// Sends to itself.
    Redirects,
    /// Answers well, over TLS.
    Tls(Arc<ServerConfig>),
}

/// All of them. They are gone when it is dropped.
pub struct Hostile {
    runtime: Option<Runtime>,
    open: Arc<AtomicUsize>,
}

impl Hostile {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            runtime: Some(runtime.expect("a runtime")),
            open: Arc::default(),
        }
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Another one; its address.
    pub fn target(&self, manner: Manner) -> SocketAddr {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        if matches!(manner, Manner::Refuses) {
            return address;
        }
        listener.set_nonblocking(true).expect("a socket");
        let runtime = self.runtime.as_ref().expect("it runs");
        let open = Arc::clone(&self.open);
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let (manner, open) = (manner.clone(), Arc::clone(&open));
                open.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(async move {
                    // Whoever hangs up is done with.
                    let _ = behave(manner, stream, address).await;
                    open.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        address
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn behave(manner: Manner, mut stream: TcpStream, here: SocketAddr) -> io::Result<()> {
    if let Manner::Tls(config) = manner {
        return speak_tls(config, stream).await;
    }
    if !matches!(manner, Manner::Greets) {
        hear(&mut stream).await?;
    }
    let ok = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    match manner {
        Manner::Refuses | Manner::Tls(_) | Manner::Silent => {}
        Manner::HangsUp => return Ok(()),
        Manner::DripsHead => drip(&mut stream, ok.bytes().cycle()).await?,
        Manner::DripsBody => {
            let head = format!("{ok}content-length: 1000\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            drip(&mut stream, std::iter::repeat(b' ')).await?;
        }
        Manner::Endless(status) => {
            let head = format!("HTTP/1.1 {status} so\r\ntransfer-encoding: chunked\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            let chunk = format!("2000\r\n{:8192}\r\n", "");
            loop {
                stream.write_all(chunk.as_bytes()).await?;
            }
        }
        Manner::Gigabyte => {
            let head = format!("{ok}content-length: {GIGABYTE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            for _ in 0..GIGABYTE / 8192 {
                stream.write_all(&[b' '; 8192]).await?;
            }
        }
        Manner::Bomb => {
            let bomb = bomb();
            let length = bomb.len();
            let head = format!("{ok}content-encoding: gzip\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&bomb).await?;
        }
        Manner::Headers => {
            stream.write_all(ok.as_bytes()).await?;
            let header = format!("x-more: {:a<1012}\r\n", "");
            for _ in 0..HEADERS / header.len() {
                stream.write_all(header.as_bytes()).await?;
            }
        }
        Manner::Nonsense | Manner::Greets => stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await?,
        Manner::ClosesMidway => {
            let head = format!("{ok}content-length: 1000\r\n\r\n{{\"half\": ");
            return stream.write_all(head.as_bytes()).await;
        }
        Manner::Redirects => {
            let head = format!(
                "HTTP/1.1 302 Found\r\nlocation: http://{here}/\r\ncontent-length: 0\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
        }
    }
    // Until the caller has enough.
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

/// Reads a whole request.
async fn hear(stream: &mut TcpStream) -> io::Result<()> {
    let mut heard = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&heard);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|text| text.parse().ok()).unwrap_or(0) {
                return Ok(());
            }
        }
        if stream.read_buf(&mut heard).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn drip(stream: &mut TcpStream, bytes: impl Iterator<Item = u8>) -> io::Result<()> {
    let mut bytes = bytes;
    let mut clock = tokio::time::interval(DRIP);
    loop {
        tokio::select! {
            _ = clock.tick() => stream.write_all(&[bytes.next().unwrap_or(b' ')]).await?,
            // Whoever hangs up is not waited for.
            read = stream.read_u8() => return read.map(drop),
        }
    }
}

async fn speak_tls(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    let speaking = tokio::task::spawn_blocking(move || {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(2 * DRIP))?;
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut tls = rustls::Stream::new(&mut tls, &mut stream);
        let mut heard = Vec::new();
        while !heard.ends_with(b"}") {
            let mut part = [0; 4096];
            let read = io::Read::read(&mut tls, &mut part)?;
            if read == 0 {
                return Ok(());
            }
            heard.extend_from_slice(&part[..read]);
        }
        tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue")?;
        tls.flush()
    });
    speaking.await.map_err(io::Error::other)?
}

/// Ten megabytes of zeros in less than 64 KiB of gzip: a zero, and again and again the 258 bytes before.
fn bomb() -> Vec<u8> {
    const TIMES: usize = 39_000;
    let mut bits = Bits::default();
    bits.put(0b011, 3); // the last block, with the fixed codes
    bits.put(reversed(0x30, 8), 8); // the byte 0
    for _ in 0..TIMES {
        bits.put(reversed(0b1100_0101, 8), 8); // a length of 258
        bits.put(0, 5); // from one byte before
    }
    bits.put(0, 7); // the end
    let mut bomb = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    bomb.extend_from_slice(&bits.bytes);
    // Whoever gets as far as the checksum has unpacked it all.
    bomb.extend_from_slice(&[0; 4]);
    bomb.extend_from_slice(
        &u32::try_from(TIMES * 258 + 1)
            .expect("ten millions")
            .to_le_bytes(),
    );
    bomb
}

/// Bits from the least significant of each byte on.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn put(&mut self, value: u16, count: u32) {
        for bit in 0..count {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.last_mut().expect("there is one");
            *last |= u8::from(value >> bit & 1 == 1) << (self.count % 8);
            self.count += 1;
        }
    }
}

/// Huffman codes stand there from their most significant bit on.
fn reversed(code: u16, bits: u32) -> u16 {
    code.reverse_bits() >> (16 - bits)
}

/// Makes certificates, good ones and others.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Else it has the name that a self-signed one has, too.
        let name = "an authority of these tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let made = CertifiedIssuer::self_signed(params, new_key());
        Self(made.expect("a certificate"))
    }

    /// Its own certificate, as a file says it.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server with a certificate for this name.
    pub fn vouches_for(&self, name: &str) -> Manner {
        self.signs(params(name))
    }

    /// The same, but its time was over years ago.
    pub fn vouched_for(&self, name: &str) -> Manner {
        let mut params = params(name);
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.signs(params)
    }

    fn signs(&self, params: CertificateParams) -> Manner {
        let key = new_key();
        let signed = params.signed_by(&key, &self.0).expect("a certificate");
        server(signed.der().clone(), &key)
    }
}

/// A server that vouches for itself.
pub fn self_signed(name: &str) -> Manner {
    let key = new_key();
    let signed = params(name).self_signed(&key).expect("a certificate");
    server(signed.der().clone(), &key)
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).expect("a name")
}

fn server(certificate: CertificateDer<'static>, key: &KeyPair) -> Manner {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    Manner::Tls(Arc::new(config.expect("a certificate with its key")))
}

#[test]
fn the_bomb_is_small() {
    assert!(bomb().len() < 64 * 1024);
}
