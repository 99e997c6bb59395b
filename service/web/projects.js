// The card of projects.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { getAll, useRead } from "./api.js";
import { Bar, Card, Problem, Rest, Table } from "./parts.js";
import { COUNT, asOf, isKnown, percent } from "./words.js";

const MOST_PROJECTS = 50;

/** Nothing where the reader sees no project. */
export function Projects() {
  const found = useRead("projects", () => getAll("/v1/projects?limit=1000", 3), 15);
  const all = found.value ?? [];
  const shown = [...all].sort((one, other) => other.uses.gpus.used - one.uses.gpus.used || other.uses.jobs.used - one.uses.jobs.used || (one.name < other.name ? -1 : 1)).slice(0, MOST_PROJECTS);
  if (!shown.length) return html`<${Problem} error=${found.error} />`;
  return html`<${Card} title="Projects" note=${asOf(found.at)} error=${found.error}>
    <${Table} label="projects" heads="project|#share|#jobs|#GPUs in use|#part of all that there may be"
      rows=${shown.map((one) => [one.name, COUNT.format(one.share), html`<${Use} use=${one.uses.jobs} label=${`jobs of ${one.name}`} />`, html`<${Use} use=${one.uses.gpus} label=${`GPUs of ${one.name}`} />`, isKnown(one.share_held) ? percent(one.share_held, 1) : "–"])} />
    <${Rest} shown=${shown.length} all=${all.length} command="projects" /><//>`;
}

/** How much is used, and of how much where that is limited. */
const Use = ({ use, label }) => (!isKnown(use.limit) ? COUNT.format(use.used)
  : html`${COUNT.format(use.used)} of ${COUNT.format(use.limit)}<${Bar} part=${use.limit ? use.used / use.limit : 1} label=${label} />`);
