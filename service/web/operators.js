// The view of operators: the policies with an editor, their history, and what another document would have cost.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { ApiError, get, getAll, getLong, request, useRead } from "./api.js";
import { Act, Diff, Problem, Sentence, Table } from "./parts.js";
import { COUNT, counted, difference, duration, isKnown, moment, money, phrase } from "./words.js";

export function Policies() {
  const newest = useRead("policies", () => get("/v1/policies/newest"), 0);
  const versions = useRead("versions", () => getAll("/v1/policies?limit=100", 3), 0);
  const [text, setText] = useState(null), [comment, setComment] = useState("");
  const [check, setCheck] = useState(null);
  const applied = newest.value?.document ?? "", document = text ?? applied, isChanged = document !== applied;
  useEffect(() => {
    if (!isChanged) { setCheck(null); return undefined; }
    let isOver = false;
    // A check for each pause in typing, and not for each key.
    const timer = setTimeout(async () => {
      try {
        const found = await request("POST", "/v1/policies/check", { document });
        if (!isOver) setCheck({ found });
      } catch (error) { if (!isOver) setCheck({ error }); }
    }, 400);
    return () => { isOver = true; clearTimeout(timer); };
  }, [document, isChanged]);
  const reload = async () => { setText(null); setComment(""); await newest.reload(); await versions.reload(); };
  const apply = async () => { await request("POST", "/v1/policies", { document, based_on: newest.value.version, comment }); await reload(); };
  const restore = (version) => async () => { await request("POST", "/v1/policies", { restores: version, based_on: newest.value.version, comment: `Back to version ${version}.` }); await reload(); };
  const problems = check?.found?.problems ?? [];
  const isGood = isChanged && check?.found && !problems.length;
  const lines = isChanged ? difference(applied, document) : [], changed = lines.filter(isOther).length;
  return html`<div class="title"><h1>Policies</h1>${newest.value ? html`<span class="muted">version ${newest.value.version}${newest.value.created_at ? `, applied on ${moment(newest.value.created_at)}` : ", made from the settings, with which the service began"}</span>` : null}</div>
    <${Problem} error=${newest.error} />
    <div class="two"><div class="card"><h2 id="editor">1. Edit</h2>
      <textarea aria-labelledby="editor" spellcheck="false" value=${document} onInput=${(event) => setText(event.target.value)}></textarea>
      <button disabled=${!isChanged} onClick=${() => setText(null)}>Discard the changes</button></div>
    <div class="card"><h2>2. Check</h2>
      <${Problem} error=${check?.error} />
      ${problems.map((problem) => html`<div class="problem"><${Sentence} text=${problemText(problem)} /></div>`)}
      ${isGood ? html`<div class="notice">No problems; ${counted(changed, "line")} changed; ${check.found.is_in_force ? "in effect already" : "not applied yet"}.</div>` : null}
      ${(check?.found?.notes ?? []).map((note) => html`<div class="notice"><${Sentence} text=${note} /></div>`)}
      ${isChanged ? html`<${Diff} lines=${lines.filter((_, index) => lines.slice(Math.max(0, index - 2), index + 3).some(isOther))} />` : html`<p class="muted">Change the document: it is checked while you type, and the difference is shown here.</p>`}</div></div>
    <${WhatIf} document=${document} applied=${applied} isChanged=${isChanged && !problems.length} />
    <div class="card"><h2>4. Apply</h2><p class="muted">From the next tick on, these policies decide what is bought, kept and given back. Running jobs go on; nodes above a maximum or of a removed pool are drained, so that their jobs continue elsewhere.</p><div class="filters"><label>comment<input value=${comment} onInput=${(event) => setComment(event.target.value)} /></label>
      ${isGood ? html`<${Act} first act=${apply} question=${`Apply these policies, with ${counted(changed, "changed line")}?`}>Apply<//>` : html`<button disabled>Apply</button>`}</div></div>
    <div class="card"><h2>History</h2><${Table} label="versions of the policies" heads="#version|applied|by|~comment|"
      rows=${(versions.value ?? []).map((one) => [one.version, one.created_at ? moment(one.created_at) : "when the service began", one.author, `${one.comment}${isKnown(one.restores) ? ` (restores ${one.restores})` : ""}`,
        one.version === newest.value?.version ? "in effect" : html`<${Act} key=${one.version} question=${`Apply the document of version ${one.version} again?`} act=${restore(one.version)}>Restore<//>`])} /></div>`;
}

const problemText = (problem) => (typeof problem === "string" ? problem : [problem.lines?.length ? `${problem.lines.length > 1 ? "lines" : "line"} ${problem.lines.join(", ")}` : "", problem.field, problem.message].filter(Boolean).join(": "));

const isOther = (line) => line.kind !== "same";

/** Replay the recorded history under the policies in effect and those of the editor. */
function WhatIf({ document, applied, isChanged }) {
  const [days, setDays] = useState(7), [plan, setPlan] = useState(null);
  const run = async () => {
    setPlan(null);
    const trace = await getLong(`/v1/trace?since=${Math.max(0, Date.now() / 1000 - days * 86400)}`);
    if (!trace.jobs) throw new ApiError(0, "", "No job trained in that time, so there is nothing to replay.", "");
    const policies = [{ name: "in effect", text: applied }, ...(isChanged ? [{ name: "edited", text: document }] : [])];
    let found = await request("POST", "/v1/plans", { traces: [{ name: "history.jsonl", text: trace.text }], policies });
    setPlan(found);
    while (!found.terminal) {
      found = await get(`/v1/plans/${found.id}?wait_s=10`);
      setPlan(found);
    }
  };
  return html`<div class="card"><h2>3. Replay: what if</h2><p class="muted">Replays the jobs of the last days under the policies in effect${isChanged ? " and those of the editor" : "; change the document to compare"}.</p>
    <div class="filters"><label>days of history<input type="number" min="1" max="31" value=${days} onInput=${(event) => setDays(Number(event.target.value))} style=${{ width: "90px" }} /></label><${Act} act=${run}>Replay<//></div>
    ${plan ? html`<${Plan} plan=${plan} />` : null}</div>`;
}

const FIGURES = [
  ["cost", (one) => money(one.cost_usd)], ["of it spot", (one) => money(one.spot_usd)], ["jobs that succeeded", (one) => COUNT.format(one.succeeded)],
  ["jobs that failed", (one) => COUNT.format(one.failed)], ["median wait", (one) => duration(one.wait_p50_s)], ["wait of 95 %", (one) => duration(one.wait_p95_s)],
  ["median time to completion", (one) => duration(one.completion_p50_s)], ["goodput", (one) => `${(100 * one.goodput).toFixed(1)} %`],
  ["capacity in use", (one) => `${(100 * one.used).toFixed(1)} %`], ["preemptions", (one) => COUNT.format(one.preemptions)],
  ["deadlines missed", (one) => COUNT.format(one.deadlines_missed)], ["budgets exceeded", (one) => COUNT.format(one.budget_violations + one.project_budget_violations)],
];

function Plan({ plan }) {
  return html`<p role="status">${plan.terminal ? phrase(plan.state) : `${Math.round(100 * plan.progress)} % of the replay of ${COUNT.format(plan.jobs)} jobs`}${plan.message ? `: ${plan.message}` : ""}</p>
    ${plan.reports.length ? html`<${Table} label="result of the replay" heads=${["", ...plan.reports.map((one) => `#${one.policy}`)].join("|")} rows=${FIGURES.map(([name, figure]) => [name, ...plan.reports.map(figure)])} />` : null}
    ${plan.plot ? html`<img alt="nodes and waiting jobs over time under each policy" style=${{ maxWidth: "100%", background: "#fff" }} src=${`data:image/svg+xml;charset=utf-8,${encodeURIComponent(plan.plot)}`} />` : null}
    ${plan.notes.map((note) => html`<p class="muted">${note}</p>`)}`;
}
