//! Private object stores for one test, with a bucket: on free ports, stopped when
//! dropped. They are installed by `./test.sh`.
//!
//! fake-gcs-server is an emulator of Google's, with its data on disk. SeaweedFS is a
//! real one, with its data on disk. moto is an emulator of Amazon's, in memory; it takes
//! one request at a time here, since it looks at a condition and writes in two steps.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::installed::installed;
use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What clients of SeaweedFS sign with, unless it is told otherwise.
pub(crate) const SECRET: &str = "tenure-secret";

/// Who may do what. A user with more makes the bucket by a write where there is none.
const IDENTITIES: &str = r#"{"identities": [{"name": "tenure",
    "credentials": [{"accessKey": "tenure", "secretKey": "tenure-secret"}],
    "actions": ["Read", "Write", "List"]},
    {"name": "anonymous", "actions": ["Admin"]}]}"#;

/// Listens on the port that it is given, by TLS with the certificate and key that it
/// may be given. It has the bucket.
const MOTO: &str = r#"
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import EnvironBuilder
moto, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start_response):
    with turn:
        return list(moto(environ, start_response))
tls = tuple(sys.argv[2:]) or None
bucket = EnvironBuilder("/bucket", "http://127.0.0.1", method="PUT").get_environ()
one_at_a_time(bucket, lambda *answer: None)
server = make_server("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True, ssl_context=tls)
print("ready", file=sys.stderr, flush=True)
server.serve_forever()
"#;

/// What fake-gcs-server says when it serves.
const GOOGLE_READY: &str = "server started at";

/// The account of Azurite, whose key everybody knows.
pub(crate) const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Where Azurite is, among what is installed.
pub(crate) const AZURITE: &str = "npm/node_modules/azurite/dist/src/blob/main.js";

/// Makes (`PUT`) or removes (`DELETE`) a container of Azurite, on the port that it is
/// given.
const CONTAINER: &str = r#"
import base64, email.utils, hashlib, hmac, http.client, sys
method, port, key = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
text = method + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2023-11-03\n"
text += "/devstoreaccount1/devstoreaccount1/bucket\nrestype:container"
digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
signed = "SharedKey devstoreaccount1:" + base64.b64encode(digest).decode()
headers = {"x-ms-date": date, "x-ms-version": "2023-11-03", "Authorization": signed}
server = http.client.HTTPConnection("127.0.0.1", int(port))
server.request(method, "/devstoreaccount1/bucket?restype=container", headers=headers)
answer = server.getresponse()
sys.exit(0 if answer.status in (201, 202) else str(answer.read()))
"#;

/// A private server.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    scheme: &'static str,
    port: u16,
    command: fn(&Self) -> Command,
    /// What it says when it serves.
    ready: &'static str,
    process: Option<Child>,
    others: Vec<u16>,
    /// The secret that clients of SeaweedFS and Azurite sign with.
    secret: String,
}

fn pid(child: &Child) -> Pid {
    let id = i32::try_from(child.id()).ok();
    id.and_then(Pid::from_raw).expect("a process id")
}

impl Server {
    /// A server of SeaweedFS.
    pub(crate) fn seaweed() -> Self {
        let server = Self::start(Self::seaweed_command, "Start Seaweed S3 API Server");
        server.ask("PUT", "", &[]);
        server
    }

    /// Has the server know another secret, or the old one again, from its next start
    /// on.
    pub(crate) fn know(&mut self, secret: &str) {
        secret.clone_into(&mut self.secret);
    }

    /// A server of moto.
    pub(crate) fn moto() -> Self {
        Self::start(Self::moto_command, "ready")
    }

    /// The same, by TLS alone, with this certificate and key.
    pub(crate) fn encrypted_moto(certificate: &str, key: &str) -> Self {
        let mut server = Self::new(Self::encrypted_moto_command, "ready");
        server.scheme = "https";
        for (name, pem) in [("cert.pem", certificate), ("key.pem", key)] {
            fs::write(server.directory.path().join(name), pem).expect("written");
        }
        server.launch();
        server
    }

    /// A server of Azurite, Azure's own emulator of its Blob service.
    pub(crate) fn azurite() -> Self {
        let server = Self::start(Self::azurite_command, "successfully listens");
        server.make_container();
        server
    }

    /// Makes the container of Azurite.
    pub(crate) fn make_container(&self) {
        self.change_container("PUT");
    }

    /// Removes it, with all that is in it.
    pub(crate) fn remove_container(&self) {
        self.change_container("DELETE");
    }

    fn change_container(&self, method: &str) {
        let mut python = Command::new(installed("bin/python3"));
        python.args(["-c", CONTAINER, method, &self.port.to_string(), AZURITE_KEY]);
        assert!(python.status().expect("Python").success());
    }

    /// A server of fake-gcs-server.
    pub(crate) fn google() -> Self {
        Self::new(Self::google_command, GOOGLE_READY).with_bucket_of_google()
    }

    /// The same, by TLS alone, with this certificate and key.
    pub(crate) fn encrypted_google(certificate: &str, key: &str) -> Self {
        let mut server = Self::new(Self::encrypted_google_command, GOOGLE_READY);
        server.scheme = "https";
        for (name, pem) in [("cert.pem", certificate), ("key.pem", key)] {
            fs::write(server.directory.path().join(name), pem).expect("written");
        }
        server.with_bucket_of_google()
    }

    fn with_bucket_of_google(mut self) -> Self {
        self.make_directory();
        self.launch();
        self
    }

    /// Makes the bucket of fake-gcs-server, which is a directory.
    pub(crate) fn make_directory(&self) {
        fs::create_dir_all(self.directory.path().join("data/bucket")).expect("a bucket");
    }

    /// Removes it, with all that is in it.
    pub(crate) fn remove_directory(&self) {
        fs::remove_dir_all(self.directory.path().join("data/bucket")).expect("a bucket");
    }

    /// Takes away all that a killed server has.
    pub(crate) fn empty(&self) {
        for entry in fs::read_dir(self.directory.path()).expect("its directory") {
            let path = entry.expect("an entry").path();
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
            removed.expect("to remove it");
        }
    }

    fn start(command: fn(&Self) -> Command, ready: &'static str) -> Self {
        let mut server = Self::new(command, ready);
        server.launch();
        server
    }

    fn new(command: fn(&Self) -> Command, ready: &'static str) -> Self {
        let others = (0..8).map(|_| ports::free()).collect();
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            scheme: "http",
            port: ports::free(),
            command,
            ready,
            process: None,
            others,
            secret: SECRET.to_owned(),
        }
    }

    /// Where it listens.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Makes the bucket of SeaweedFS.
    pub(crate) fn make_bucket(&self) {
        self.ask("PUT", "", &[]);
    }

    /// The directory it lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The bytes of an object of the bucket.
    pub(crate) fn object(&self, name: &str) -> Vec<u8> {
        self.ask("GET", &format!("/{name}"), &[])
    }

    /// Makes an object, or writes over it, whatever it was.
    pub(crate) fn put_object(&self, name: &str, bytes: &[u8]) {
        self.ask("PUT", &format!("/{name}"), bytes);
    }

    /// Deletes an object, whatever it was.
    pub(crate) fn delete_object(&self, name: &str) {
        self.ask("DELETE", &format!("/{name}"), &[]);
    }

    /// Asks for the bucket, or for what is below it. SeaweedFS lets us do that without
    /// a signature.
    fn ask(&self, method: &str, below: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "{method} /bucket{below} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\n\
             Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        let mut server = TcpStream::connect(("127.0.0.1", self.port)).expect("a server");
        let request = [head.as_bytes(), body].concat();
        server.write_all(&request).expect("sent");
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n");
        let body = answer.split_off(end.expect("a head") + 4);
        let head = String::from_utf8_lossy(&answer);
        let is_done = head.contains(" 200 ") || head.contains(" 204 ");
        assert!(is_done, "{method} {below}: {head}");
        body
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn moto_command(&self) -> Command {
        let mut command = Command::new(installed("bin/python3"));
        command.args(["-c", MOTO, &self.port.to_string()]);
        command
    }

    fn encrypted_moto_command(&self) -> Command {
        let mut command = self.moto_command();
        command.args(["cert.pem", "key.pem"]);
        command
    }

    fn azurite_command(&self) -> Command {
        let mut command = Command::new(installed("node"));
        command.arg(installed(AZURITE));
        command.args([
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            &self.port.to_string(),
        ]);
        command.arg("--location").arg(self.directory.path());
        command.args(["--skipApiVersionCheck", "--disableTelemetry"]);
        if self.secret != SECRET {
            command.env(
                "AZURITE_ACCOUNTS",
                format!("devstoreaccount1:{}", self.secret),
            );
        }
        command
    }

    fn google_command(&self) -> Command {
        let mut command = Command::new(installed("bin/fake-gcs-server"));
        command.args(["-scheme", self.scheme, "-host", "127.0.0.1"]);
        command.args(["-filesystem-root", "data", "-port", &self.port.to_string()]);
        command
    }

    fn encrypted_google_command(&self) -> Command {
        let mut command = self.google_command();
        command.args(["-cert-location", "cert.pem"]);
        command.args(["-private-key-location", "key.pem"]);
        command
    }

    fn seaweed_command(&self) -> Command {
        let config = self.directory.path().join("s3.json");
        let identities = IDENTITIES.replace(SECRET, &self.secret);
        fs::write(&config, identities).expect("written");
        let mut command = Command::new(installed("bin/weed"));
        command.args(["-logtostderr=true", "server", "-s3", "-s3.iam=false"]);
        let dir = self.directory.path().display();
        command.arg(format!("-dir={dir}"));
        command.arg(format!("-s3.config={}", config.display()));
        command.arg(format!("-s3.port={}", self.port));
        let ports = [
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "s3.port.grpc",
        ];
        for (flag, port) in ports.iter().zip(&self.others) {
            command.arg(format!("-{flag}={port}"));
        }
        command.args([
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.volumeSizeLimitMB=64",
            "-master.electionTimeout=100ms",
            "-master.telemetry=false",
            "-volume.max=20",
            "-volume.minFreeSpace=0",
        ]);
        command
    }

    /// Starts it, with what it has on its disk, and waits until it serves.
    pub(crate) fn launch(&mut self) {
        let mut command = (self.command)(self);
        let started = command
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What the terminal sends is not for the server.
            .process_group(0)
            .spawn();
        let mut process = started.expect("a server");
        let (out, log) = (process.stdout.take(), process.stderr.take());
        let said: [Box<dyn Read + Send>; 2] = [
            Box::new(out.expect("its output")),
            Box::new(log.expect("its log")),
        ];
        self.process = Some(process);
        let ready = self.ready;
        let (send, told) = mpsc::channel();
        for said in said {
            let send = send.clone();
            // Read until it ends, so that it never waits for a reader.
            std::thread::spawn(move || {
                for line in BufReader::new(said).lines().map_while(Result::ok) {
                    if line.contains(ready) {
                        let _ = send.send(());
                    }
                }
            });
        }
        let up = told.recv_timeout(PATIENCE);
        up.unwrap_or_else(|_| panic!("the server never said {ready:?}"));
    }

    /// Tells it to end, and waits until it has: Azurite writes some of what it has
    /// acknowledged then, and loses it where it is killed.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process(pid(&process), Signal::TERM);
            let _ = process.wait();
        }
    }

    /// Kills it, without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills it, without a chance to clean up, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// Freezes it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let process = pid(self.process.as_ref().expect("it runs"));
        kill_process(process, Signal::STOP).expect("it runs");
        await_stopped(process);
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        let process = pid(self.process.as_ref().expect("it runs"));
        kill_process(process, Signal::CONT).expect("it runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
