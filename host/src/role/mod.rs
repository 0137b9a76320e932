//! One task a role, on the lease loop: turns what happens into inputs of the role's machine, and carries out its effects.
//!
//! This is where a lost lease turns into a stopped plugin: the machine says [`Effect::Demote`], and
//! [`Role::demote`] closes the gate where the lease is lost and sends the order to end to the term's own task
//! ([`term`]), which runs on the plugins' runtime. When that task has ended, the machine learns it as
//! [`Input::Stopped`], and only then asks for the release.

mod slots;
mod term;

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tenure_core::{ClaimId, Effect, Handoff, Input, Instant, Machine, Reason, Reply, Report, RequestId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use self::term::{Ending, News, Term, Won};
use crate::audit::{Audit, Event};
use crate::clock;
use crate::config::RoleConfig;
use crate::gate::Gate;
use crate::plugin::Image;
use crate::store::batch::StoreHandle;
use crate::store::{ClaimAsk, Claimed, HandoffChange, HolderInfo, ReleaseAsk, RenewAsk, StoreError, StoreEvent};
use crate::words;

/// What all roles of this instance share.
pub struct Host {
    /// `instance.name`.
    pub name: String,
    /// The store, behind the batcher.
    pub store: StoreHandle,
    /// The audit file.
    pub audit: Audit,
    /// The runtime that plugins run on: never the one that leases are kept on.
    pub plugins: tokio::runtime::Handle,
    /// How much fuel this machine burns in a millisecond.
    pub fuel_per_ms: u64,
    /// How many roles this instance leads.
    pub leading: AtomicU32,
}

/// What a role's task is told from outside.
#[derive(Debug)]
pub enum Mail {
    /// Something that the store pushed about this role.
    Store(StoreEvent),
    /// The host is stopping.
    Stop,
}

/// A role on this instance.
pub struct Role {
    host: Arc<Host>,
    config: Arc<RoleConfig>,
    image: Arc<dyn Image>,
    machine: Machine,
    mail: mpsc::UnboundedReceiver<Mail>,
    /// The present request: at most one is in flight, and a newer one replaces it.
    request: Option<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    /// The term that this instance leads, until its plugin has stopped.
    term: Option<Leading>,
    /// Why the last request that failed did, in words.
    problem: Option<StoreError>,
    /// What the granted claim brought along, for the promotion that follows.
    granted_handoff: Option<Handoff>,
    /// What the last term's plugin left, for the release that follows.
    handoff_change: HandoffChange,
}

/// The end of a request.
struct Answer {
    request: RequestId,
    reply: Reply,
    handoff: Option<Handoff>,
    problem: Option<StoreError>,
}

/// A term that has begun and whose plugin has not stopped yet.
struct Leading {
    term: u64,
    claim: ClaimId,
    gate: Arc<Gate>,
    order: watch::Sender<Option<Ending>>,
    news: mpsc::UnboundedReceiver<News>,
    work: JoinHandle<HandoffChange>,
}

/// What woke the task up.
enum Happening {
    Input(Input),
    Answer(Answer),
    News(News),
    WorkEnded(Result<HandoffChange, tokio::task::JoinError>),
}

impl Role {
    /// A role that does not lead yet.
    #[must_use]
    pub fn new(
        host: Arc<Host>,
        config: Arc<RoleConfig>,
        image: Arc<dyn Image>,
        mail: mpsc::UnboundedReceiver<Mail>,
    ) -> Self {
        let machine = Machine::new(config.timing.clone());
        Self {
            host,
            config,
            image,
            machine,
            mail,
            request: None,
            term: None,
            problem: None,
            granted_handoff: None,
            handoff_change: HandoffChange::Keep,
        }
    }

    /// Runs the role until it was told to stop and holds nothing any more.
    pub async fn run(mut self) {
        while !self.machine.is_stopped() {
            let happening = self.next_happening().await;
            let input = match happening {
                Happening::Input(input) => Some(input),
                Happening::Answer(answer) => Some(self.answered(answer)),
                Happening::News(news) => self.news(news),
                Happening::WorkEnded(left) => self.work_ended(left),
            };
            if let Some(input) = input {
                for effect in self.machine.step(clock::now(), input) {
                    self.carry_out(effect);
                }
            }
        }
    }

    async fn next_happening(&mut self) -> Happening {
        let wake_at = self.machine.wake_at().unwrap_or(Instant::NEVER);
        let request = async {
            match &mut self.request {
                Some(request) => request.await,
                None => pending().await,
            }
        };
        let work = async {
            match &mut self.term {
                Some(leading) => tokio::select! {
                    biased;
                    Some(news) = leading.news.recv() => Happening::News(news),
                    left = &mut leading.work => Happening::WorkEnded(left),
                },
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            mail = self.mail.recv() => Happening::Input(match mail {
                Some(Mail::Store(StoreEvent::Released { .. })) => Input::Freed,
                Some(Mail::Store(StoreEvent::Elected { term, claim, .. })) => Input::Elected { term, claim },
                // Without a supervisor there is nobody to run for.
                Some(Mail::Stop) | None => Input::Stop,
            }),
            happening = work => happening,
            answer = request => Happening::Answer(answer),
            () = clock::sleep_until(wake_at) => Happening::Input(Input::Wake {
                fresh: ClaimId(Uuid::new_v4()),
                leading: self.host.leading.load(Ordering::Relaxed),
            }),
        }
    }

    fn answered(&mut self, answer: Answer) -> Input {
        self.request = None;
        self.granted_handoff = answer.handoff;
        let repeated = answer.problem == self.problem;
        self.problem = answer.problem;
        if let (Some(problem), false) = (&self.problem, repeated) {
            warn!(role = %self.config.name, %problem, "the store did not do as asked");
        }
        Input::Reply { request: answer.request, reply: answer.reply }
    }

    fn news(&mut self, news: News) -> Option<Input> {
        let Leading { term, claim, .. } = self.term.as_ref()?;
        let term = *term;
        match news {
            News::Elected => {
                self.settle_handoff(*claim);
                None
            }
            News::Failed => Some(Input::Failed { term }),
            News::Resigned => Some(Input::Resigned { term }),
        }
    }

    /// Removes the hand-off that was taken over. Not part of the lease protocol: nothing waits for it, and the release
    /// of this term removes it again, should this request fail.
    fn settle_handoff(&self, claim: ClaimId) {
        let (store, role) = (self.host.store.clone(), self.config.name.clone());
        let within = self.config.timing.request_timeout();
        tokio::spawn(async move {
            if let Err(problem) = store.settle_handoff(&role, claim, within).await {
                warn!(%role, %problem, "the hand-off stays in the store until this term ends");
            }
        });
    }

    /// The term's task has ended: whatever it did, nothing of the term runs any more.
    fn work_ended(&mut self, left: Result<HandoffChange, tokio::task::JoinError>) -> Option<Input> {
        let Leading { term, gate, .. } = self.term.take()?;
        gate.close();
        match left {
            Ok(change) => self.handoff_change = change,
            Err(panic) => {
                // A bug of the host. The plugin went down with its task; the role is given up, and claimed again later.
                error!(role = %self.config.name, term, %panic, "the task that ran the plugin panicked");
                self.handoff_change = HandoffChange::Keep;
                self.record(term, Event::WorkPanicked { error: panic.to_string() });
                for effect in self.machine.step(clock::now(), Input::Failed { term }) {
                    self.carry_out(effect);
                }
            }
        }
        Some(Input::Stopped { term })
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Claim { request, claim, seen_term, within } => {
                let holder = HolderInfo {
                    instance: self.host.name.clone(),
                    admin: String::new(),
                    digest: self.image.digest().to_owned(),
                };
                let (role, ttl) = (self.config.name.clone(), self.config.timing.ttl());
                let ask = ClaimAsk { role, claim, ttl, seen_term, holder };
                let store = self.host.store.clone();
                self.request = Some(Box::pin(async move {
                    match store.claim(ask, within).await {
                        Ok(Claimed { reply, handoff }) => {
                            Answer { request, reply: Reply::Claim(reply), handoff, problem: None }
                        }
                        Err(problem) => Answer::none(request, problem),
                    }
                }));
            }
            Effect::Renew { request, claim, within } => {
                let (role, ttl) = (self.config.name.clone(), self.config.timing.ttl());
                let ask = RenewAsk { role, claim, ttl };
                let store = self.host.store.clone();
                self.request = Some(Box::pin(async move {
                    match store.renew(ask, within).await {
                        Ok(reply) => Answer { request, reply: Reply::Renew(reply), handoff: None, problem: None },
                        Err(problem) => Answer::none(request, problem),
                    }
                }));
            }
            Effect::Release { request, claim, term, within } => {
                let handoff = if term.is_some() { self.handoff_change.clone() } else { HandoffChange::Keep };
                let ask = ReleaseAsk { role: self.config.name.clone(), claim, handoff };
                let store = self.host.store.clone();
                self.request = Some(Box::pin(async move {
                    match store.release(ask, within).await {
                        Ok(reply) => Answer { request, reply: Reply::Release(reply), handoff: None, problem: None },
                        Err(problem) => Answer::none(request, problem),
                    }
                }));
            }
            Effect::Promote { term, claim, trusted_until } => self.promote(term, claim, trusted_until),
            Effect::Extend { trusted_until } => {
                if let Some(leading) = &self.term {
                    leading.gate.extend(trusted_until);
                }
            }
            Effect::Demote { term, reason, trusted_until } => self.demote(term, Ending { reason, trusted_until }),
            Effect::Report(report) => self.report(&report),
        }
    }

    fn promote(&mut self, term: u64, claim: ClaimId, trusted_until: Instant) {
        self.host.leading.fetch_add(1, Ordering::Relaxed);
        let role = &self.config.name;
        info!(%role, term, "leading");
        self.record(term, Event::LeaseAcquire { trust: trusted_until.since(clock::now()) });
        let gate = Arc::new(Gate::new(term, trusted_until));
        let (order, order_receiver) = watch::channel(None);
        let (news_sender, news) = mpsc::unbounded_channel();
        let work = Term::new(
            self.host.clone(),
            self.config.clone(),
            self.image.clone(),
            Won { claim, gate: gate.clone(), handoff: self.granted_handoff.take() },
            order_receiver,
            news_sender,
        );
        let work = self.host.plugins.spawn(work.run());
        self.term = Some(Leading { term, claim, gate, order, news, work });
    }

    /// Ends the term: a lost lease closes the gate at once, any other leaves it open until the plugin has stopped.
    fn demote(&mut self, term: u64, ending: Ending) {
        self.host.leading.fetch_sub(1, Ordering::Relaxed);
        let (role, reason) = (&self.config.name, ending.reason.as_str());
        let is_lost = matches!(ending.reason, Reason::Lost | Reason::Unreachable);
        if let (Some(leading), Reason::Lost) = (&self.term, ending.reason) {
            leading.gate.close();
        }
        // Before the order: the stop that it leads to is recorded by another thread.
        if is_lost {
            self.record(term, Event::LeaseLost { reason: ending.reason });
        }
        if let Some(leading) = &self.term {
            leading.order.send_replace(Some(ending));
        }
        if is_lost {
            warn!(%role, term, reason, "the lease is lost: stopping the plugin");
        } else {
            info!(%role, term, reason, "giving the role up: stopping the plugin");
        }
    }

    fn report(&self, report: &Report) {
        let role = &self.config.name;
        match *report {
            Report::Following { by, term } => info!(%role, term, %by, "standing by: another instance leads"),
            Report::ClaimUnanswered { failures } => debug!(%role, failures, "a claim got no answer: asking again"),
            Report::RenewalUnanswered { failures, left } => {
                let left = words::duration(left);
                warn!(%role, failures, "a renewal got no answer: stepping down in {left} unless one succeeds");
            }
            Report::RenewalsResumed => info!(%role, "renewals are answered again"),
            Report::Vanished { left } => {
                let left = words::duration(left);
                warn!(
                    %role,
                    "the lease key is gone, but the lease was neither released nor has it run out (deleted or evicted?): \
                     waiting for {left}, until its holder cannot trust it any more"
                );
            }
            Report::DataLost { seen, found, wait } => {
                let wait = words::duration(wait);
                error!(
                    %role, seen, found,
                    "the store lost data: its term is below one that was seen; waiting for {wait}, since a lease that it \
                     lost may still be trusted, and then claiming above it"
                );
            }
            Report::OrphanFound { claim } => {
                warn!(%role, %claim, "an own claim that had ended holds the lease (delivered late): releasing it");
            }
            Report::StaleTerm { granted, seen } => {
                error!(%role, granted, seen, "the store granted a term that is not above one that was seen: not used");
            }
            Report::GrantUnused { term } => {
                info!(%role, term, "the lease was granted too late to be used: releasing it");
            }
            Report::Released { term } => {
                info!(%role, term, "the lease is released");
                self.record(term, Event::LeaseRelease { error: None });
            }
            Report::ReleaseUnanswered { term } => {
                warn!(%role, term, "the release got no answer: the lease runs out by itself");
                let error = Some("no answer from the store: the lease runs out by itself".to_owned());
                self.record(term, Event::LeaseRelease { error });
            }
            Report::CoolingDown { wait } => {
                info!(%role, "leaving the role to others for {}", words::duration(wait));
            }
        }
    }

    fn record(&self, term: u64, event: Event) {
        self.host.audit.record(&self.config.name, term, event);
    }
}

impl Answer {
    fn none(request: RequestId, problem: StoreError) -> Self {
        Self { request, reply: Reply::None, handoff: None, problem: Some(problem) }
    }
}
