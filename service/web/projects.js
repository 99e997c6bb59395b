// The card of projects: their shares, and what their jobs use beside their quotas.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { getAll, useRead } from "./api.js";
import { Bar, Problem, Table } from "./parts.js";
import { COUNT, asOf, isKnown, percent } from "./words.js";

/** Projects that are shown; `remora projects` lists all. */
const MOST_PROJECTS = 50;

/** Nothing where the reader sees no project. */
export function Projects() {
  const found = useRead("projects", () => getAll("/v1/projects?limit=1000", 3), 15);
  const all = found.value ?? [];
  const shown = [...all].sort((one, other) => other.uses.gpus.used - one.uses.gpus.used || other.uses.jobs.used - one.uses.jobs.used || (one.name < other.name ? -1 : 1)).slice(0, MOST_PROJECTS);
  if (!shown.length) return html`<${Problem} error=${found.error} />`;
  return html`<section class="card"><h2>Projects <span class="muted">${asOf(found.at)}</span></h2><${Problem} error=${found.error} />
    <${Table} label="projects" heads="project|#share|#jobs|#GPUs in use|#part of all that there may be"
      rows=${shown.map((one) => [one.name, COUNT.format(one.share), html`<${Use} use=${one.uses.jobs} label=${`jobs of ${one.name}`} />`, html`<${Use} use=${one.uses.gpus} label=${`GPUs of ${one.name}`} />`, isKnown(one.share_held) ? percent(one.share_held, 1) : "–"])} />
    ${all.length > shown.length ? html`<p class="muted">${shown.length} of ${all.length}; <code>remora projects</code> lists all.</p>` : null}</section>`;
}

/** How much is used, and of how much where that is limited. */
const Use = ({ use, label }) => (!isKnown(use.limit) ? COUNT.format(use.used)
  : html`${COUNT.format(use.used)} of ${COUNT.format(use.limit)}<${Bar} part=${use.limit ? use.used / use.limit : 1} label=${label} />`);
