// The page: who reads it, which view the address names, and the frame around it.

import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { readIdentity, signIn, signOut } from "./api.js";
import { here } from "./addresses.js";
import { Problem } from "./parts.js";
import { Jobs } from "./jobs.js";
import { JobView } from "./job.js";
import { Cluster } from "./cluster.js";
import { Costs } from "./costs.js";
import { Policies } from "./operators.js";

const VIEWS = [["jobs", "Jobs"], ["cluster", "Cluster"], ["costs", "Costs"], ["policies", "Policies"]];

function Page() {
  const [place, setPlace] = useState(here());
  const [identity, setIdentity] = useState(null), [error, setError] = useState(null);
  const look = async () => {
    try {
      setIdentity(await readIdentity());
      setError(null);
    } catch (problem) { setError(problem); }
  };
  useEffect(() => {
    const moved = () => setPlace(here());
    addEventListener("hashchange", moved);
    look();
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(look, 2000);
    return () => clearTimeout(timer);
  }, [error]);
  const [name = "jobs", id] = place.view;
  const isOperator = !identity?.isRequired || Boolean(identity?.principal?.is_operator);
  const seesCosts = isOperator || Object.values(identity?.principal?.grants ?? {}).some((role) => role !== "viewer");
  const shown = VIEWS.filter(([view]) => (view === "policies" ? isOperator : view === "costs" ? seesCosts : true));
  useEffect(() => { document.title = `${id ?? shown.find(([view]) => view === name)?.[1] ?? "Remora"} · Remora`; }, [name, id]);
  return html`<header class="top"><strong>Remora</strong>
      <nav aria-label="views">${shown.map(([view, title]) => html`<a href=${`#/${view}`} aria-current=${name === view ? "page" : undefined}>${title}</a>`)}</nav>
      <div class="end">${identity?.isRequired && identity.principal ? html`<span>${identity.principal.name ?? identity.principal.id}</span><button onClick=${async () => { await signOut(); await look(); }}>Sign out</button>` : null}</div></header>
    <main><${Problem} error=${error} />${identity === null ? null : identity.principal === null ? html`<${SignIn} done=${look} />`
      : name === "jobs" && id ? html`<${JobView} key=${id} id=${id} query=${place.query} />`
      : name === "cluster" ? html`<${Cluster} isOperator=${isOperator} />`
      : name === "costs" && seesCosts ? html`<${Costs} query=${place.query} />`
      : name === "policies" && isOperator ? html`<${Policies} />`
      : html`<${Jobs} query=${place.query} />`}</main>`;
}

function SignIn({ done }) {
  const [token, setToken] = useState(""), [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await signIn(token.trim());
      await done();
    } catch (problem) { setError(problem); }
  };
  return html`<div class="card"><h1>Sign in</h1><p class="muted">The service asks for a token: <code>remora tokens create</code> makes one. The browser keeps it for twelve hours in a cookie that no script reads.</p>
    <${Problem} error=${error} />
    <form class="filters" onSubmit=${submit}><label>token<input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} /></label><button class="first">Sign in</button></form></div>`;
}

render(html`<${Page} />`, document.getElementById("page"));
