//! A web page of another site makes somebody's browser call a server that has
//! no tokens.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::servers::Servers;

/// What a browser sends to the server, and the status that comes back. `{}` in
/// the headers is the server's address.
async fn send(servers: &Servers, line: &str, headers: &[&str], body: &str) -> (u16, String) {
    let address = servers.running[&1].address();
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
    for header in headers {
        request += &header.replace("{}", &address.to_string());
        request += "\r\n";
    }
    request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.expect("a status"), text)
}

const APPEND: [&str; 2] = ["POST /v1/log/append", r#"{"entries": ["ZXZpbA=="]}"#];
const VIEW: [&str; 2] = [
    "POST /v1/registers/compare_and_swap",
    r#"{"swap": {"key": "ha/g/view", "value": "MQ=="}}"#,
];
const JSON: &str = "Content-Type: application/json";

#[tokio::test]
async fn a_page_of_another_site_changes_and_reads_nothing() {
    let servers = Servers::found(1, 0);
    servers.append("one").await;
    let own = "Host: {}";
    let foreign = "Origin: http://evil.example";
    let rebound = "Host: evil.example:7400";
    // What a page may send to another site without asking, with the origin
    // that browsers tell and old ones do not; and with a name that was rebound.
    for [line, body] in [APPEND, VIEW] {
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
        ] {
            let kind = format!("Content-Type: {kind}");
            assert_eq!(
                send(&servers, line, &[own, foreign, &kind], body).await.0,
                403
            );
            assert_eq!(
                send(&servers, line, &[own, "Origin: null", &kind], body)
                    .await
                    .0,
                403
            );
            assert_eq!(send(&servers, line, &[own, &kind], body).await.0, 415);
        }
        assert_eq!(send(&servers, line, &[own], body).await.0, 415);
        assert_eq!(
            send(&servers, line, &[own, foreign, JSON], body).await.0,
            403
        );
        let same = "Origin: http://evil.example:7400";
        assert_eq!(
            send(&servers, line, &[rebound, same, JSON], body).await.0,
            403
        );
    }
    // The same by gRPC, which tonic also takes over HTTP/1.1.
    let grpc = "Content-Type: application/grpc";
    let line = "POST /tenure.v1.Cluster/Snapshot";
    let framed = "\0\0\0\0\0";
    assert_eq!(send(&servers, line, &[rebound, grpc], framed).await.0, 403);
    assert_eq!(send(&servers, line, &[own, grpc], framed).await.0, 415);
    // A page that a browser takes for one of the server's reads nothing.
    for path in ["/v1/cluster/status", "/metrics", "/v2"] {
        let (status, text) = send(&servers, &format!("GET {path}"), &[rebound], "").await;
        assert_eq!(status, 403, "{path}");
        assert!(text.contains("--host"), "it says what to do: {text}");
    }
    // The browser asks first where a page sends JSON, and is not told yes.
    let asks = ["Access-Control-Request-Method: POST", own, foreign];
    let (status, text) = send(&servers, "OPTIONS /v1/log/append", &asks, "").await;
    assert_eq!(status, 403);
    assert!(
        !text.to_lowercase().contains("access-control-allow"),
        "{text}"
    );

    assert_eq!(servers.append("two").await, 2, "nothing was in between");
    assert!(servers.read("ha/g/view").await.register.is_none());
    let metrics = send(&servers, "GET /metrics", &[own], "").await.1;
    assert!(
        metrics.contains("tenure_calls_barred_total{reason=\"CrossOrigin\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn programs_call_as_before_and_probes_by_any_name() {
    let servers = Servers::found_with(1, 0, |it| it.hosts = vec!["payroll.example".into()]);
    servers.append("one").await;
    let [line, body] = APPEND;
    for host in [
        "Host: {}",
        "Host: localhost",
        "Host: Payroll.example:80",
        "Host: [::1]:1",
    ] {
        let (status, text) = send(&servers, line, &[host, JSON], body).await;
        assert_eq!(status, 200, "{text}");
    }
    // What the server itself were to serve as a page would be let in.
    let same = ["Host: {}", "Origin: http://{}", JSON];
    assert_eq!(send(&servers, line, &same, body).await.0, 200);
    for probe in ["/healthz", "/readyz", "/leader"] {
        let probe = format!("GET {probe}");
        let status = send(&servers, &probe, &["Host: any.example"], "").await.0;
        assert_eq!(status, 200, "{probe}");
    }
    assert_eq!(servers.append("last").await, 7);
}
