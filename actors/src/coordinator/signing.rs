//! Signatures under the values that owners publish: made, and checked where streams and frames
//! arrive. See [`slowmo_protocol::published`].

use crate::context::NodeContext;
use slowmo_protocol::coordinator::{Attempt, Claim, Coordinator, Voter};
use slowmo_protocol::published::{Digest, Signed, statement};
use slowmo_protocol::wire::{Header, Message};

/// Signs what this node publishes in an attempt. `None` if it has published something else in the
/// same attempt.
pub fn sign(context: &NodeContext, attempt: Attempt, digest: Digest) -> Option<Signed> {
    let identity = context.settings.identity;
    let me = Voter {
        node: identity.node,
        incarnation: identity.incarnation,
    };
    let first = context.signed.lock().note(attempt, digest);
    first.then(|| {
        let statement = statement(identity.cluster, attempt, me, digest);
        let signature = context.signer.sign(&statement);
        Signed { digest, signature }
    })
}

/// Whether an owner signed what it is said to have published in an attempt.
pub fn is_signed(context: &NodeContext, attempt: Attempt, claim: &Claim) -> bool {
    let Claim { owner, key, signed } = claim;
    let cluster = context.settings.identity.cluster;
    let statement = statement(cluster, attempt, *owner, signed.digest);
    context.signer.verifies(key, &statement, &signed.signature)
}

/// What the signatures in a frame say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that matter are sound.
    Sound,
    /// One is not by the key that this node knows; the sender may know another one.
    Unknown,
    /// One is false, and the sender knows the same keys as this node.
    False,
}

/// Checks the signatures in a frame that the machine would act on.
pub fn check(
    context: &NodeContext,
    machine: &Coordinator,
    header: &Header,
    message: &Message,
) -> Verdict {
    let claims = machine.claims(header, message);
    let attempt = Attempt::of(header);
    if claims
        .iter()
        .all(|claim| is_signed(context, attempt, claim))
    {
        return Verdict::Sound;
    }
    let place = machine.place();
    if (header.lineage, header.round) == (place.lineage, place.round) {
        Verdict::False
    } else {
        Verdict::Unknown
    }
}
