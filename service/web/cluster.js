// The view of the cluster.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { get, getAll, request, useRead } from "./api.js";
import { Act, Problem, Sentence, State, Table, useNow } from "./parts.js";
import { addressOf } from "./addresses.js";
import { Cpu, Gpu } from "./loads.js";
import { Projects } from "./projects.js";
import { counted, duration, isKnown, moment, money, offering, percent, phrase, shortId } from "./words.js";

const LIVE = "requested,launched,joined,ready,draining,terminating";

export function Cluster({ isOperator }) {
  const now = useNow(5);
  const pools = useRead("pools", () => getAll("/v1/pools"), 3);
  const nodes = useRead("nodes", () => getAll(`/v1/nodes?limit=1000&state=${LIVE}`), 3);
  const loads = useRead("loads", async () => new Map((await get("/v1/loads?limit=200")).items.map((one) => [one.node_id, one])), 10).value ?? new Map();
  const old = useRead("ended nodes", () => get(`/v1/nodes?limit=200&state=gone,failed`), 15);
  const events = useRead("cluster events", () => (isOperator ? getAll("/v1/events?limit=200", 5) : []), 10);
  const alive = nodes.value ?? [], ended = old.value?.items ?? [];
  // Names do not change: they are read again only where other jobs are on the nodes.
  const there = [...new Set(alive.flatMap((node) => node.jobs))].sort().join();
  const names = useRead(`names ${there}`, async () => new Map(there ? (await get("/v1/jobs?limit=1000&state=running")).items.map((job) => [job.id, job.name]) : []), 0);
  const price = alive.reduce((sum, node) => sum + node.price_per_hour, 0);
  return html`<div class="title"><h1>Cluster</h1><small>${counted(alive.length, "node")}, ${money(price)} per hour</small></div>
    <${Problem} error=${pools.error ?? nodes.error} />
    ${(pools.value ?? []).map((pool) => html`<${Pool} key=${pool.name} pool=${pool} nodes=${alive.filter((node) => node.pool === pool.name)} names=${names.value ?? new Map()} loads=${loads} now=${now} isOperator=${isOperator} reload=${pools.reload} />`)}
    ${pools.value && !pools.value.length && html`<p class="muted">No pool is known yet: the controller writes them at its first tick.</p>`}
    <${Projects} />
    ${ended.length > 0 && html`<details class="card"><summary>${old.value?.next_cursor ? "The newest 200 nodes that" : counted(ended.length, "node")} ended</summary><${Table} label="nodes that have ended" heads="node|pool|lived|~why it ended" rows=${ended.map((node) => [node.id, node.pool, duration((node.ended_at ?? now) - node.created_at), node.message])} /></details>`}
    ${(events.value?.length || events.error) && html`<details class="card"><summary>${counted((events.value ?? []).length, "event")} of the cluster</summary><${Problem} error=${events.error} /><${Table} label="events of the cluster" heads="time|event|~message" rows=${[...(events.value ?? [])].reverse().slice(0, 200).map((event) => [moment(event.at), event.kind, event.message])} /></details>`}`;
}

function Pool({ pool, nodes, names, loads, now, isOperator, reload }) {
  const act = (what, body) => async () => { await request("POST", `/v1/pools/${encodeURIComponent(pool.name)}/${what}`, body); await reload(); };
  const ready = nodes.filter((node) => node.state === "ready"), hit = new Set(ready.flatMap((node) => node.jobs)).size;
  return html`<section class="card"><div class="title"><h2>${pool.name}</h2><small>${pool.min_nodes === pool.max_nodes ? `always ${counted(pool.max_nodes, "node")}` : `${pool.min_nodes} to ${pool.max_nodes} nodes`}${pool.warm_nodes ? `, ${pool.warm_nodes} kept ready` : ""}: ${Object.entries(pool.nodes).map(([state, count]) => `${count} ${phrase(state)}`).join(", ") || "no node now"}</small>
      ${isOperator && html`<div class="end">${pool.refused.length > 0 && html`<${Act} act=${act("reopen")}>Ask the cloud again<//>`}
        ${ready.length > 0 && html`<${Act} question=${`Rehearse the preemption of ${ready.map((node) => shortId(node.id)).join(", ")} of the pool ${pool.name}, with a notice of 30 s? ${hit ? `${counted(hit, "job")} on them will move, which costs time.` : "No job runs on them."}`} act=${act("drill", { notice_s: 30 })}>Rehearse a preemption<//>`}</div>`}</div>
    <p>Planned: ${planned(pool, nodes)}.</p>
    ${pool.waits.map((wait) => html`<div class="notice"><b>Held up: </b><${Sentence} text=${wait.reason} /> <small>for ${duration(now - wait.since)}</small></div>`)}
    ${pool.refused.length > 0 && html`<${Table} label="refused by the cloud" heads="the cloud refuses|~why|asked again in" rows=${pool.refused.map((one) => [one.offering, one.reason, duration(Math.max(0, one.until - now))])} />`}
    <${Market} pool=${pool} now=${now} />
    ${byZone(nodes).map(([zone, some]) => html`${zone && html`<h3>Zone ${zone} <small>${counted(some.length, "node")}</small></h3>`}<div class="tiles">${some.map((node) => html`<${Node} key=${node.id} node=${node} names=${names} load=${loads.get(node.id)} now=${now} />`)}</div>`)}</section>`;
}

/** `[[zone, [node, ...]], ...]` in the order of the zones' names; those without a zone are the first. */
const byZone = (nodes) => [...Map.groupBy(nodes, (node) => offering(node.offering).zone)].sort(([one], [other]) => (one < other ? -1 : 1));

/** What the pool may buy now; nothing where that was not recorded. */
function Market({ pool, now }) {
  if (!pool.offerings.length) return null;
  const prices = pool.offerings.filter((one) => !one.closed_until).map((one) => one.price_per_hour);
  return html`<details><summary>${counted(pool.offerings.length, "offering")}${prices.length ? `, from ${money(Math.min(...prices))} per hour` : ", all of them refused now"}${pool.offerings_at && html` <small>unchanged since ${moment(pool.offerings_at)}, as far as the controller has asked the cloud</small>`}</summary><${Table} label=${`offerings of ${pool.name}`} heads="size|zone|capacity|#per hour|#preempted in an hour|the cloud"
      rows=${[...pool.offerings].sort((one, other) => one.price_per_hour - other.price_per_hour).map((one) => {
        const sold = offering(one.offering);
        return [sold.size, sold.zone || "any", sold.capacity, `${money(one.price_per_hour)}${one.is_price_assumed ? " (assumed)" : ""}`,
          isKnown(one.evictions_per_hour) ? percent(one.evictions_per_hour, 1) : "never", one.closed_until ? `refuses it for ${duration(Math.max(0, one.closed_until - now))}` : "sells it"];
      })} /></details>`;
}

function planned(pool, nodes) {
  const coming = nodes.filter((node) => ["requested", "launched", "joined"].includes(node.state)).length;
  const going = nodes.filter((node) => ["draining", "terminating"].includes(node.state)).length;
  const found = [coming ? `${counted(coming, "node")} being started` : "", going ? `${counted(going, "node")} on the way out` : ""].filter(Boolean);
  if (found.length) return found.join(", ");
  if (nodes.length >= pool.max_nodes) return `nothing more, as its policy allows ${counted(pool.max_nodes, "node")} at most`;
  return pool.waits.length ? "no node now" : "nothing, as no job needs more of its nodes";
}

function Node({ node, names, load, now }) {
  const bought = offering(node.offering);
  const resources = Object.entries(node.resources).filter(([name]) => name === "CPU" || name === "GPU").map(([name, count]) => `${count} ${name}`).join(", ");
  return html`<div class="tile ${bought.capacity}"><div class="title"><strong title=${node.id}>${shortId(node.id)}</strong><${State} state=${node.state} /></div>
    <div class="muted">${[bought.size, bought.capacity].filter(Boolean).join(", ")}</div>
    <div class="muted">${[resources, node.price_per_hour ? `${money(node.price_per_hour)} per hour` : "", node.ready_at ? `up ${duration(now - node.ready_at)}` : `requested ${duration(now - node.created_at)} ago`].filter(Boolean).join(" · ")}</div>
    <div>${node.jobs.length ? html`runs ${node.jobs.map((id, index) => html`${index ? ", " : ""}<a href=${addressOf(`jobs/${id}`)}>${names.get(id) ?? shortId(id)}</a>`)}` : node.state === "ready" ? html`<small>runs no job</small>` : null}</div>
    ${load && html`<div><${Cpu} load=${load} /> <${Gpu} load=${load} /></div>`}
    ${(node.reason ?? node.message) && html`<div>${node.reason ?? node.message}</div>`}</div>`;
}
