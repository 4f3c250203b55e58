//! How simulated processes connect and disconnect: dialing, duplicate incarnations, silence,
//! goodbyes.

use super::event::Event;
use super::network::{Connection, Process, Session};
use super::world::World;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness;
use slowmo_protocol::membership::{DialFault, In};
use slowmo_protocol::time::Span;
use slowmo_protocol::trace::End;
use std::net::SocketAddr;

/// Interval at which discovery is asked for peers, in microseconds.
const SEARCH_EVERY: u64 = 150_000;
/// Maximum delay of the next attempt to connect after a failed one, in microseconds.
const DIAL_AGAIN_MAX: u64 = 80_000;
/// Number of times per idle time that a process checks whether its connections are alive.
const LOOKS: u64 = 4;

impl World {
    pub(super) fn id(&self, process: Process) -> NodeId {
        self.processes[process].node.start.node
    }

    /// Whether packets get from one process to another: both are up, and the link is open.
    pub(super) fn passes(&self, from: Process, to: Process) -> bool {
        self.processes[from].alive
            && self.processes[to].alive
            && !self.network.is_cut(self.id(from), self.id(to))
    }

    pub(super) fn dial(&mut self, process: Process, address: SocketAddr) {
        let peer = self.addresses.get(&address).copied();
        let session = peer.and_then(|peer| self.network.sessions[process].get(&self.id(peer)));
        let up = session.is_some_and(|session| session.up && Some(session.peer) == peer);
        if !up
            && address != self.processes[process].node.address
            && self.network.dialing[process].insert(address)
        {
            let at = self.now + 1 + self.random.below(2_000);
            let give_up = self.now + self.config.waits.connect.0;
            self.at(at, Event::Dial(process, address, give_up));
        }
    }

    pub(super) fn dial_once(&mut self, process: Process, address: SocketAddr, give_up: u64) {
        if !self.processes[process].alive {
            return;
        }
        if self.connect(process, address) {
            self.network.dialing[process].remove(&address);
        } else if self.now >= give_up {
            self.network.dialing[process].remove(&address);
            let tried_for = Span(self.config.waits.connect.0);
            let error = "no answer".to_owned();
            self.tell(
                process,
                In::DialFailed {
                    address,
                    tried_for,
                    fault: DialFault::Silent,
                    error,
                },
                0,
            );
        } else {
            let at = self.now + 20_000 + self.random.below(DIAL_AGAIN_MAX);
            self.at(at, Event::Dial(process, address, give_up));
        }
    }

    /// Makes one attempt to connect; returns true if there is no need to try again.
    fn connect(&mut self, process: Process, address: SocketAddr) -> bool {
        let Some(peer) = self.addresses.get(&address).copied() else {
            return false;
        };
        // A handshake needs both directions, and a peer that runs.
        if !(self.passes(process, peer) && self.passes(peer, process)) || self.is_paused(peer) {
            return false;
        }
        if self.id(peer) == self.id(process) {
            return true;
        }
        if !(self.admits(peer, process) && self.admits(process, peer)) {
            return false;
        }
        if self.network.sessions[process]
            .get(&self.id(peer))
            .is_some_and(|session| session.up && session.peer == peer)
        {
            return true;
        }
        let number = self.network.number();
        self.network.connections.insert(
            (process, peer),
            Connection {
                number,
                ..Connection::default()
            },
        );
        self.accept(peer, process, number);
        self.attach(process, peer);
        true
    }

    /// Whether `at` admits a connection: another incarnation of a node that is still heard is
    /// turned away. No process can tell which of them is the later one, since clocks step back.
    fn admits(&self, at: Process, peer: Process) -> bool {
        let known = self.network.sessions[at].get(&self.id(peer));
        known.is_none_or(|known| known.peer == peer || !self.hears(at, known.peer))
    }

    /// Whether a process hears a peer while nothing else is sent: connections are kept alive in
    /// both directions.
    fn hears(&self, at: Process, peer: Process) -> bool {
        let has_session = self.network.sessions[peer]
            .get(&self.id(at))
            .is_some_and(|session| session.peer == at);
        self.passes(peer, at) && !self.is_paused(peer) && has_session
    }

    /// Handles a connection that the other end has dialed.
    fn accept(&mut self, at: Process, peer: Process, number: u64) {
        let id = self.id(peer);
        match self.network.sessions[at].get(&id).copied() {
            // The peer would not dial again if it still had the connection before. Closing tells
            // the other end, which may already count on the connection that this end dialed.
            Some(session) if session.peer != peer || session.accepted.is_some() => {
                self.end_session(at, session.peer, false)
            }
            _ => {}
        }
        let session = self.network.sessions[at].entry(id).or_insert(Session {
            peer,
            up: false,
            accepted: None,
        });
        session.accepted = Some(number);
        self.know(at, peer);
    }

    /// Handles a connection that this end has dialed: the peer can be sent to.
    fn attach(&mut self, at: Process, peer: Process) {
        let start = self.processes[peer].node.start;
        if let Some(session) = self.network.sessions[at]
            .get(&start.node)
            .copied()
            .filter(|session| session.peer != peer)
        {
            self.close_session(at, session.peer, false);
        }
        let session = self.network.sessions[at]
            .entry(start.node)
            .or_insert(Session {
                peer,
                up: false,
                accepted: None,
            });
        session.up = true;
        self.know(at, peer);
        self.tell(at, In::PeerUp(start.node, start.incarnation), 0);
    }

    fn know(&mut self, at: Process, peer: Process) {
        let start = self.processes[peer].node.start;
        self.network.silent.remove(&(at, peer));
        self.network.known[at].insert(start.node, (peer, start.incarnation));
        self.network.hear(at, start.node);
    }

    pub(super) fn search(&mut self, process: Process) {
        if !self.processes[process].alive || !self.processes[process].searches {
            return;
        }
        // A node that leaves removes its address.
        let stays = |other: &&Process| self.processes[**other].ended != Some(End::Left);
        let found: Vec<SocketAddr> = self
            .newest
            .values()
            .filter(stays)
            .map(|other| self.processes[*other].node.address)
            .collect();
        if self.processes[process].discovered.as_ref() != Some(&found) {
            self.processes[process].discovered = Some(found.clone());
            self.tell(process, In::Discovered(found.clone()), 0);
        }
        found
            .into_iter()
            .for_each(|address| self.dial(process, address));
        let at = self.now + SEARCH_EVERY;
        self.at(at, Event::Search(process));
    }

    /// Ends connections over which nothing was heard for too long.
    pub(super) fn look(&mut self, process: Process) {
        if !self.processes[process].alive {
            return;
        }
        let idle = self.config.waits.idle.0;
        let at = self.now + idle / LOOKS;
        self.at(at, Event::Look(process));
        let peers: Vec<Process> = self.network.sessions[process]
            .values()
            .map(|session| session.peer)
            .collect();
        for peer in peers {
            if self.hears(process, peer) {
                self.network.silent.remove(&(process, peer));
                // Connections are kept alive.
                let id = self.id(peer);
                self.network.hear(process, id);
                continue;
            }
            if self.passes(process, peer) && self.passes(peer, process) && !self.is_paused(peer) {
                // The other end closed the connection and its message was lost: it answers the
                // keep-alive packets with a reset.
                self.close_session(process, peer, false);
                continue;
            }
            let since = *self
                .network
                .silent
                .entry((process, peer))
                .or_insert(self.now);
            if self.now >= since + idle {
                self.close_session(process, peer, false);
            }
        }
    }

    /// Ends the session that `at` has with a process; the other end is told, if possible.
    pub(super) fn end_session(&mut self, at: Process, peer: Process, departed: bool) {
        if self.network.sessions[at]
            .get(&self.id(peer))
            .is_none_or(|session| session.peer != peer)
        {
            return;
        }
        // A process that was told so by the other end need not tell it.
        if self.passes(at, peer) && !departed {
            let arrives = self.travel(at, peer, 0);
            let connections = self.connections_of(at, peer);
            self.at(
                arrives,
                Event::Closed {
                    at: peer,
                    peer: at,
                    departed: false,
                    connections,
                },
            );
        }
        self.close_session(at, peer, departed);
    }

    /// The connections that a process has with a peer: the one that it dialed, and the one that it
    /// accepted.
    fn connections_of(&self, at: Process, peer: Process) -> [Option<u64>; 2] {
        let dialed = self
            .network
            .connection(at, peer)
            .map(|connection| connection.number);
        let session = self.network.sessions[at]
            .get(&self.id(peer))
            .filter(|session| session.peer == peer);
        [dialed, session.and_then(|session| session.accepted)]
    }

    /// The other end has closed connections; ignored if this end already has others.
    pub(super) fn hear_closed(
        &mut self,
        at: Process,
        peer: Process,
        departed: bool,
        [theirs, ours]: [Option<u64>; 2],
    ) {
        let [dialed, accepted] = self.connections_of(at, peer);
        let same =
            (accepted.is_some() && accepted == theirs) || (dialed.is_some() && dialed == ours);
        if same {
            self.end_session(at, peer, departed);
        }
    }

    fn close_session(&mut self, at: Process, peer: Process, departed: bool) {
        let node = self.id(peer);
        let Some(session) = self.network.sessions[at].remove(&node) else {
            return;
        };
        self.network.silent.remove(&(at, peer));
        self.lose_streams(at, peer);
        self.network.connections.remove(&(at, peer));
        if session.up {
            self.tell(at, In::PeerDown { node, departed }, 0);
        }
    }

    /// A process says goodbye to all that it can reach, after everything that it has sent.
    pub(super) fn depart(&mut self, process: Process) {
        let peers: Vec<Process> = self.network.sessions[process]
            .values()
            .map(|session| session.peer)
            .collect();
        for peer in peers {
            if self.processes[peer].alive && !self.network.is_cut(self.id(process), self.id(peer)) {
                let sent = self
                    .network
                    .connection(process, peer)
                    .map_or(0, |connection| connection.last);
                let at = self.travel(process, peer, 0).max(sent + 1);
                let connections = self.connections_of(process, peer);
                self.at(
                    at,
                    Event::Closed {
                        at: peer,
                        peer: process,
                        departed: true,
                        connections,
                    },
                );
            }
        }
    }

    /// Sends one byte to the port where the node was: its kernel refuses it if nothing listens
    /// there.
    pub(super) fn port_probe(&mut self, process: Process, node: NodeId) {
        let Some((peer, _)) = self.network.known[process].get(&node).copied() else {
            return;
        };
        let id = self.id(process);
        if !self.processes[peer].alive
            && !self.network.is_cut(id, node)
            && !self.network.is_cut(node, id)
        {
            let at = self.travel(process, peer, 0);
            let delay = 2 * (at - self.now);
            self.tell(process, liveness::In::PortRefused(node), delay);
        }
    }
}
