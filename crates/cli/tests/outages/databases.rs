//! PostgreSQL and MariaDB.

use super::interface::{Fault, Subject};
use super::mariadb::MariaDb;
use super::postgres::Postgres;

const PASSWORD: &str = "open sesame";

struct PostgresServer(Postgres);

/// With a user that may make its table and no more.
pub(crate) fn postgres() -> Box<dyn Subject> {
    let server = PostgresServer(Postgres::start());
    server.make_user();
    Box::new(server)
}

impl PostgresServer {
    fn make_user(&self) {
        self.0.sql(&format!(
            "CREATE ROLE web LOGIN PASSWORD '{PASSWORD}'; GRANT CREATE ON SCHEMA public TO web"
        ));
    }
}

impl Subject for PostgresServer {
    fn url(&self) -> String {
        self.0.url_of("web", PASSWORD)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0.port())
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.0.stop();
                &["onnection refused"]
            }
            Fault::Revoked => {
                self.0.sql(
                    "ALTER ROLE web NOLOGIN; SELECT pg_terminate_backend(pid) \
                     FROM pg_stat_activity WHERE usename = 'web'",
                );
                &["\"web\" is not permitted to log in"]
            }
            Fault::Missing => {
                self.0.sql("DROP TABLE tenure_register");
                &["tenure repair ELECTION --create"]
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.0.launch(),
            Fault::Emptied => {
                self.0.empty();
                self.0.launch();
                self.make_user();
            }
            Fault::Revoked => drop(self.0.sql("ALTER ROLE web LOGIN")),
            Fault::Missing => {}
        }
    }
}

struct MariaDbServer(MariaDb);

pub(crate) fn mysql() -> Box<dyn Subject> {
    Box::new(MariaDbServer(MariaDb::start()))
}

impl Subject for MariaDbServer {
    fn url(&self) -> String {
        self.0.url()
    }

    fn address(&self) -> String {
        self.0.host()
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.0.kill();
                &["onnection refused"]
            }
            Fault::Revoked => {
                self.0
                    .sql("ALTER USER tenure@'%' ACCOUNT LOCK; KILL USER tenure");
                &["this account is locked (4151)"]
            }
            Fault::Missing => {
                self.0.sql("DROP TABLE tenure_register");
                &["tenure repair ELECTION --create"]
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.0.launch(),
            Fault::Emptied => {
                self.0.empty();
                self.0.launch();
            }
            Fault::Revoked => drop(self.0.sql("ALTER USER tenure@'%' ACCOUNT UNLOCK")),
            Fault::Missing => {}
        }
    }
}
