// Addresses of views: the part behind the # names a view, and its query holds the filters.

export const addressOf = (view, query = {}) => {
  const filled = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return `#/${view}${filled.length ? `?${new URLSearchParams(filled)}` : ""}`;
};

/** `{view: ["jobs", "job_..."], query}` of the address of the page. */
export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query ?? "") };
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

/** Show a view; the one before stays in the history, except where only a filter changes. */
export function go(view, query) {
  const address = addressOf(view, query);
  if (here().view.join("/") === view) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address;
}
