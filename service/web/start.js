// Loads the page again where one of its files did not arrive: a module without one of its imports never runs.

(() => {
  /** Modules of the page: a browser would find each only when another names it. */
  const MODULES = "vendor/htm-preact-3.1.1 addresses api budget_course budgets cluster cost_bars costs job job_costs " +
    "job_courses jobs life_line life_line_view loads logs operators parts plots profile projects submission trace words zoom";
  const FIRST_S = 1, LONGEST_S = 30, KEPT = "remora loads";
  let isWaiting = false;

  /** Loads in a row that were not complete. */
  function counted() {
    try {
      const count = Number(sessionStorage.getItem(KEPT)) || 0;
      sessionStorage.setItem(KEPT, String(count + 1));
      return count;
    } catch { return 0; }
  }

  function loadAgain(afterS) {
    setTimeout(async () => {
      try {
        // Where nothing answers, a reload would end at the browser's own page.
        const answer = await fetch("/web/start.js", { cache: "no-store", signal: AbortSignal.timeout(10_000) });
        if (answer.ok) { location.reload(); return; }
      } catch { /* Asked again below. */ }
      loadAgain(Math.min(LONGEST_S, 2 * afterS));
    }, afterS * 1000);
  }

  // Errors of files do not bubble: they are seen on their way down.
  addEventListener("error", (event) => {
    if (isWaiting || !(event.target instanceof HTMLScriptElement || event.target instanceof HTMLLinkElement)) return;
    isWaiting = true;
    const shown = document.getElementById("loading");
    if (shown) shown.textContent = "A file of the page did not arrive. The page is loaded again as soon as the service answers.";
    loadAgain(Math.min(LONGEST_S, FIRST_S * 2 ** counted()));
  }, true);

  for (const name of MODULES.split(" ")) {
    const link = Object.assign(document.createElement("link"), { rel: "modulepreload", href: `/web/${name}.js` });
    document.head.append(link);
  }
})();
