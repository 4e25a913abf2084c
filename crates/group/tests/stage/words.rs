//! The commands of a script.
//!
//! | command | what happens |
//! |---|---|
//! | `node a [quorum=2] [ha=no] [max=3] [label=x] [watch=no] [spread=yes] [group=g] [hold=yes]` | a node joins |
//! | `deploy a pay [ha=no] [on=b\|any] [instances=3] [order=1] [needs=x] [content=x]` | `a` is asked to deploy |
//! | `undeploy a pay`, `move a pay b`, `drain a b` | `a` is asked for that |
//! | `leave a`, `handover a` | `a` is told to leave, or to drain itself |
//! | `kill a` | node and work are gone |
//! | `crash a` | the node is gone; its guardian keeps the work |
//! | `restart a` | after everything has ended |
//! | `resume a` | on from its file, with what its guardian kept |
//! | `suspend a`, `wake a` | it stands still; its guardian does not |
//! | `cut a`, `hold a [only=view]`, `vague a`, `deny a`, `mend a`, `land a` | how it reaches the store; what was held lands |
//! | `stubborn a`, `failing pay`, `working pay` | work that does not stop, or start |
//! | `crumble a pay` | a workload that runs on `a` ends by itself |
//! | `forget a` | somebody deletes its heartbeat |
//! | `lose a` | the view of its group is deleted |
//! | `keep a view`, `back a view` | the view of its group is copied; the store gives out that copy again |
//! | `keep a beat`, `back a beat` | the same with its heartbeat |
//! | `lift a 7` | the view of its group gets that epoch |
//! | `older a` | its line of the view becomes one of a version of before |
//! | `wait 3s` | time passes |

use std::error::Error;

use goldenscript::{Command as Line, Context, Runner};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_core::time::Instant;
use tenure_group::{
    Command, Config, Digest, Input, Job, Keys, Node, NodeId, Phase, Request, ResumeState, Spec,
    View,
};

use super::{Actor, Link, Stage};
use crate::args::{Args, Outcome, span};

impl Runner for Stage {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut args = Args::new(line);
        let name = line.name.as_str();
        match name {
            "wait" => {
                let until = self.at + span(args.word()?)?;
                self.advance_to(until);
            }
            "failing" => {
                self.failing.insert(args.word()?.into());
            }
            "working" => {
                self.failing.remove(args.word()?);
            }
            "node" => self.node(&mut args)?,
            _ => {
                let who = args.word()?;
                let index = self.actor(who)?;
                self.act(name, index, &mut args)?;
            }
        }
        args.finish()?;
        self.settle();
        Ok(std::mem::take(&mut self.trace))
    }
}

impl Stage {
    fn actor(&self, name: &str) -> Outcome<usize> {
        let found = self.actors.iter().position(|actor| actor.name == name);
        found.ok_or_else(|| format!("there is no {name}").into())
    }

    fn id_of(&self, name: &str) -> Outcome<NodeId> {
        let node = self.actors[self.actor(name)?].node.as_ref();
        Ok(node.ok_or("it is not up")?.id())
    }

    fn rng(&mut self) -> Rng {
        self.seed += 1;
        Rng::from_seed(self.seed)
    }

    fn node(&mut self, args: &mut Args<'_>) -> Outcome<()> {
        let name = args.word()?;
        let mut config = Config::new(
            args.name("group")?.unwrap_or(Name::new("shop")?),
            Name::new(name)?,
        );
        config.plant = self.plant;
        config.quorum = args.parsed("quorum")?.unwrap_or(0);
        config.ha = args.key("ha") != Some("no");
        config.spread = args.key("spread") == Some("yes");
        config.max = args.parsed("max")?;
        config.labels = args.name("label")?.into_iter().collect();
        let watch = args.key("watch") != Some("no");
        let held = args.key("hold") == Some("yes");
        config.validate()?;
        self.actors.push(Actor {
            name: name.into(),
            config,
            node: None,
            link: if held { Link::Held } else { Link::Up },
            watch,
            suspended: false,
            stubborn: false,
            works: Default::default(),
            run_deadline: Instant::ZERO,
            file: None,
            held: Default::default(),
            life: 1,
            inbox: Default::default(),
        });
        self.start(self.actors.len() - 1, None);
        Ok(())
    }

    fn start(&mut self, index: usize, past: Option<ResumeState>) {
        let (rng, now) = (self.rng(), self.now());
        let actor = &mut self.actors[index];
        let config = actor.config.clone();
        let former = actor.file.map(|(id, _)| id);
        actor.node = Some(match past {
            Some(past) => Node::resume(config, rng, now, past),
            None => Node::new(config, rng, now, former),
        });
        if actor.watch {
            actor.inbox.push_back(Input::WatchUp(true));
        }
    }

    fn tell(&mut self, index: usize, command: Command) {
        self.actors[index].inbox.push_back(Input::Command(command));
    }

    fn request(&mut self, index: usize, request: Request) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.tell(index, Command::Ask { ticket, request });
    }

    fn act(&mut self, name: &str, index: usize, args: &mut Args<'_>) -> Outcome<()> {
        match name {
            "deploy" => {
                let request = self.deployment(index, args)?;
                self.request(index, request);
            }
            "undeploy" => self.request(index, Request::Undeploy(Name::new(args.word()?)?)),
            "move" => {
                let workload = Name::new(args.word()?)?;
                let to = self.id_of(args.word()?)?;
                self.request(index, Request::Move(workload, to));
            }
            "drain" => {
                let id = self.id_of(args.word()?)?;
                self.request(index, Request::Drain(id));
            }
            "leave" => self.tell(index, Command::Leave),
            "handover" => self.tell(index, Command::Drain),
            "suspend" => self.actors[index].suspended = true,
            "wake" => self.actors[index].suspended = false,
            "cut" | "hold" | "vague" | "deny" | "mend" | "land" => self.link(name, index, args),
            "stubborn" => self.actors[index].stubborn = true,
            "crumble" => {
                let workload = args.word()?;
                let works = self.actors[index].works.iter();
                let mut works = works.filter(|(_, order)| order.name.as_str() == workload);
                let run = *works.next().ok_or("it does not run there")?.0;
                self.end(index, run, "loses", Some("the script says so"));
            }
            "forget" => {
                let key = Keys::of(self.actors[index].config.group.clone());
                let key = key.heartbeat(self.id_of(&self.actors[index].name.clone())?);
                let version = self.store.read(&key).map(|it| it.version.clone());
                let _ = self.store.delete(&key, &version.ok_or("it has none")?);
            }
            "lose" => {
                let key = Keys::of(self.actors[index].config.group.clone()).view();
                let version = self.store.read(&key).map(|it| it.version.clone());
                let _ = self.store.delete(&key, &version.ok_or("there is no view")?);
            }
            "keep" | "back" => self.copy(name, index, args.word()?)?,
            "older" => {
                let name = self.actors[index].config.name.clone();
                self.edit(index, |view| {
                    view.epoch += 1;
                    let mut members = view.members.iter_mut();
                    let member = members.find(|member| member.name == name);
                    member.ok_or("it is no member")?.serial = 1;
                    Ok(())
                })?;
            }
            "lift" => {
                let epoch: u64 = args.word()?.parse()?;
                self.edit(index, |view| {
                    view.epoch = epoch;
                    Ok(())
                })?;
            }
            "kill" | "crash" | "restart" | "resume" => self.life(name, index),
            other => return Err(format!("there is no command {other}").into()),
        }
        Ok(())
    }

    /// How it reaches the store.
    fn link(&mut self, name: &str, index: usize, args: &mut Args<'_>) {
        let actor = &mut self.actors[index];
        match name {
            "cut" => actor.link = Link::Cut,
            "hold" if args.key("only") == Some("view") => actor.link = Link::HeldView,
            "hold" => actor.link = Link::Held,
            "vague" => actor.link = Link::Vague,
            "deny" => actor.link = Link::Denied,
            "mend" => actor.link = Link::Up,
            _ => self.land(index),
        }
    }

    /// What was held lands.
    fn land(&mut self, index: usize) {
        while let Some((life, call, op)) = self.actors[index].held.pop_front() {
            let input = self.apply(index, call, &op);
            // Nobody hears the answers to a life that has ended.
            if life == self.actors[index].life {
                self.actors[index].inbox.push_back(input);
            }
        }
    }

    /// Keeps a copy of a register, or lets the store give it out again.
    fn copy(&mut self, name: &str, index: usize, what: &str) -> Outcome<()> {
        let place = (index, what.to_string());
        if name == "keep" {
            let keys = Keys::of(self.actors[index].config.group.clone());
            let key = match what {
                "view" => keys.view(),
                _ => keys.heartbeat(self.id_of(&self.actors[index].name.clone())?),
            };
            let held = self.store.read(&key).ok_or("there is none")?.clone();
            self.kept.insert(place, (key, held));
            return Ok(());
        }
        let (key, old) = self.kept.get(&place).ok_or("nothing was kept")?.clone();
        let held = self.store.read(&key).map(|it| it.version.clone());
        let write = Write {
            key,
            expect: held.map_or(Expect::Absent, Expect::Version),
            value: old.value,
            stamp: Stamp::Now,
        };
        let put = self.store.swap_as(write, None, old.version);
        put.map_err(|_| "it is another")?;
        Ok(())
    }

    fn edit(&mut self, index: usize, edit: impl Fn(&mut View) -> Outcome<()>) -> Outcome<()> {
        let key = Keys::of(self.actors[index].config.group.clone()).view();
        let register = self.store.read(&key).ok_or("there is no view")?;
        let mut view = View::decode(&register.value)?;
        edit(&mut view)?;
        let write = Write {
            expect: Expect::Version(register.version.clone()),
            key: key.clone(),
            value: view.encode(),
            stamp: Stamp::Now,
        };
        let _ = self.store.compare_and_swap(write, None);
        self.written(index, &key);
        Ok(())
    }

    fn life(&mut self, name: &str, index: usize) {
        let actor = &mut self.actors[index];
        match name {
            "kill" => {
                actor.life += 1;
                actor.node = None;
                actor.inbox.clear();
                actor.works.clear();
            }
            "crash" => {
                actor.life += 1;
                actor.node = None;
                actor.inbox.clear();
            }
            "restart" => {
                actor.life += 1;
                actor.works.clear();
                self.start(index, None);
            }
            _ => {
                let jobs = actor.works.iter().map(|(run, order)| {
                    let job = Job {
                        run: *run,
                        digest: order.digest.clone(),
                        instances: order.instances,
                        fence: order.fence,
                        phase: Phase::Running,
                    };
                    (order.name.clone(), job)
                });
                let jobs = jobs.collect();
                let past = actor
                    .file
                    .map(|(id, grant)| ResumeState { id, grant, jobs });
                self.start(index, past);
            }
        }
    }

    fn deployment(&self, index: usize, args: &mut Args<'_>) -> Outcome<Request> {
        let workload = args.word()?;
        let digest = Digest::new(&format!("of-{workload}")).ok_or("no digest")?;
        let mut spec = Spec::new(Name::new(workload)?, digest);
        spec.ha = args.key("ha") != Some("no");
        spec.instances = args.parsed("instances")?.unwrap_or(1);
        spec.order = args.parsed("order")?.unwrap_or(0);
        spec.needs = args.name("needs")?.into_iter().collect();
        if let Some(content) = args.key("content") {
            spec.digest = Digest::new(content).ok_or("no digest")?;
            spec.content = Some(content.as_bytes().into());
        }
        let on = match args.key("on") {
            Some("any") => None,
            Some(name) => Some(self.id_of(name)?),
            None => Some(self.id_of(&self.actors[index].name)?),
        };
        Ok(Request::Deploy(spec, on))
    }
}
