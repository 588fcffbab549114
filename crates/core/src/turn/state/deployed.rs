//! What is deployed.

use super::{Body, State};
use crate::id::{Name, Scoped};
use crate::stream::StreamId;
use crate::turn::deployment::Active;

impl State {
    /// What is deployed, with the tenant that it is of.
    pub fn deployed(&self) -> impl Iterator<Item = (&Name, &Active)> {
        let all = self.streams.from_kind(StreamId::Deployment(Scoped::least()));
        let deployments = all.map_while(|stream| match &stream.body {
            Body::Deployment(active) => Some((&stream.tenant, active.as_ref().as_ref())),
            // tidy: the next kind begins.
            _ => None,
        });
        deployments.filter_map(|(tenant, active)| Some((tenant, active?)))
    }
}
