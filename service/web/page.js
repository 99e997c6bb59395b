// The page: who reads it, which view the address names, and the frame around it.

import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { SIGNED_OUT, readIdentity, signIn, signOut } from "./api.js";
import { here } from "./addresses.js";
import { Problem } from "./parts.js";
import { Jobs } from "./jobs.js";
import { JobView } from "./job.js";
import { ProfileView } from "./profile.js";
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
    // A session ends while the page stays open.
    addEventListener(SIGNED_OUT, look);
    look();
    return () => { removeEventListener("hashchange", moved); removeEventListener(SIGNED_OUT, look); };
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(look, 2000);
    return () => clearTimeout(timer);
  }, [error]);
  const [name = "jobs", id, part, number] = place.view;
  const isOperator = !identity?.isRequired || Boolean(identity?.principal?.is_operator);
  const seesCosts = isOperator || Object.values(identity?.principal?.grants ?? {}).some((role) => role !== "viewer");
  const shown = VIEWS.filter(([view]) => (view === "policies" ? isOperator : view === "costs" ? seesCosts : true));
  useEffect(() => { document.title = `${(name === "jobs" && id) || shown.find(([view]) => view === name)?.[1] || "Remora"} · Remora`; }, [name, id]);
  return html`<header class="top"><strong>Remora</strong>
      <nav aria-label="views">${shown.map(([view, title]) => html`<a href=${`#/${view}`} aria-current=${name === view ? "page" : undefined}>${title}</a>`)}</nav>
      <div class="end">${identity?.isRequired && identity.principal && html`<span>${identity.principal.name ?? identity.principal.id}</span><button onClick=${async () => { await signOut(); await look(); }}>Sign out</button>`}</div></header>
    <main><${Problem} error=${error} />${identity === null ? null : identity.principal === null ? html`<${SignIn} done=${look} issuers=${identity.issuers} place=${place} />`
      : name === "jobs" && part === "profiles" && number ? html`<${ProfileView} key=${place.view} id=${id} number=${number} />`
      : name === "jobs" && id ? html`<${JobView} key=${id} id=${id} query=${place.query} />`
      : name === "cluster" ? html`<${Cluster} isOperator=${isOperator} />`
      : name === "costs" && seesCosts ? html`<${Costs} query=${place.query} />`
      : name === "policies" && isOperator ? html`<${Policies} />`
      : html`<${Jobs} query=${place.query} />`}</main>`;
}

/** Why the service led back without a session, by the code in `#/sign-in/CODE`. */
const FAILURES = {
  sign_in_expired: "The sign-in took too long, or another one was begun. Sign in again.",
  sign_in_refused: "The account was not accepted. The log of the service says why.",
  issuer_unreachable: "The service could not ask the issuer of accounts. Try again in a minute.",
  sign_in_unavailable: "The service cannot read its keys. Its log says what to do.",
  token_too_long: "The issuer's token is too long for a browser: assign fewer groups to the application.",
};

function SignIn({ done, issuers, place }) {
  const [token, setToken] = useState(""), [error, setError] = useState(null);
  const isBack = place.view[0] === "sign-in";
  const submit = async (event) => {
    event.preventDefault();
    try {
      await signIn(token.trim());
      await done();
    } catch (problem) { setError(problem); }
  };
  return html`<div class="card"><h1>Sign in</h1>
    ${isBack && html`<div class="problem" role="alert">${Object.hasOwn(FAILURES, place.view[1]) ? FAILURES[place.view[1]] : "The sign-in failed."}</div>`}
    ${issuers.length > 0 && html`<p>${issuers.map((name) => html`<a class="first" href=${`/v1/sign-in/${encodeURIComponent(name)}/page?${new URLSearchParams({ view: isBack ? "jobs" : place.view.join("/") })}`}>Sign in with ${name}</a> `)}</p>`}
    <p class="muted">${issuers.length ? "Or with a token of the service:" : "The service asks for a token:"} <code>remora tokens create</code> makes one. The browser keeps it for twelve hours in a cookie that no script reads.</p>
    <${Problem} error=${error} />
    <form class="filters" onSubmit=${submit}><label>token<input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} /></label><button class="first">Sign in</button></form></div>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
try { sessionStorage.removeItem("remora loads"); } catch { /* It counts none. */ }
