// The documentation site: search, versions, copy buttons. Builds elements only, never HTML from text.
(() => {
  "use strict";
  const root = document.body.dataset.root;
  const input = document.getElementById("search");
  const results = document.getElementById("results");

  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  };

  // Rows: file, page, heading, text. Every word must occur; matches in titles count most.
  const search = (query) => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const [file, page, heading, text] of window.holdfastSearch || []) {
      const lower = [page.toLowerCase(), heading.toLowerCase(), text.toLowerCase()];
      let score = 0;
      for (const word of words) {
        let best = 0;
        if (lower[2].includes(word)) best = 1;
        if (lower[0].includes(word)) best = 4;
        if (lower[1].includes(word)) best = lower[1] === word ? 20 : 8;
        if (!best) { score = 0; break; }
        score += best;
      }
      if (/^(bugs|mutations|requirements|decisions|changelog|limits|reference\/kinds\/(?!workload))/.test(file)) score /= 4;
      if (score) found.push([score, file, page, heading, text]);
    }
    return found.sort((a, b) => b[0] - a[0]).slice(0, 12).map((row) => row.slice(1));
  };

  const excerpt = (text, query) => {
    const at = Math.max(0, text.toLowerCase().indexOf(query.toLowerCase().split(/\s+/)[0]) - 40);
    return (at ? "… " : "") + text.slice(at, at + 130) + (text.length > at + 130 ? " …" : "");
  };

  const show = () => {
    const query = input.value.trim();
    results.replaceChildren();
    results.hidden = query.length < 2;
    if (results.hidden) return;
    const rows = search(query);
    for (const [file, page, heading, text] of rows) {
      const link = make("a", "", make("li", "", results));
      link.href = root + file;
      make("b", heading === page ? page : `${page} › ${heading}`, link);
      make("small", excerpt(text, query), link);
    }
    if (!rows.length) make("li", "Nothing found.", results).className = "none";
  };

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".search")) results.hidden = true;
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) { event.preventDefault(); input.focus(); input.select(); }
    if (event.key === "Escape") { results.hidden = true; input.blur(); }
    const links = [...results.querySelectorAll("a")];
    if (results.hidden || !links.length) return;
    const at = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown") { event.preventDefault(); links[Math.min(at + 1, links.length - 1)].focus(); }
    if (event.key === "ArrowUp") { event.preventDefault(); (at > 0 ? links[at - 1] : input).focus(); }
    if (event.key === "Enter" && document.activeElement === input) location.href = links[0].href;
  });

  const versions = document.getElementById("version");
  for (const version of window.holdfastVersions || []) {
    if (version !== document.body.dataset.version) make("option", version, versions);
  }
  versions.addEventListener("change", () => { location.href = `${root}../${versions.value}/index.html`; });

  for (const block of document.querySelectorAll("pre.command")) {
    const button = make("button", "Copy", block);
    button.type = "button";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
    });
  }
  // On a narrow screen a row is a block, and each of its cells names its column.
  for (const table of document.querySelectorAll(".wide table")) {
    const columns = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
    for (const row of table.tBodies.length ? table.tBodies[0].rows : []) {
      [...row.cells].forEach((cell, at) => { if (at) cell.dataset.column = columns[at]; });
    }
  }
  // The navigation shows the place of this page.
  const pages = document.querySelector("nav.pages");
  const here = pages.querySelector("[aria-current]");
  if (here && here.offsetTop > pages.clientHeight - 80) pages.scrollTop = here.offsetTop - pages.clientHeight / 2;
  // The list of headings marks the one that is being read.
  const entries = [...document.querySelectorAll("nav.contents a")];
  const headings = entries.map((entry) => document.getElementById(decodeURIComponent(entry.hash.slice(1))));
  const markHeading = () => {
    let now = -1;
    headings.forEach((heading, at) => { if (heading && heading.getBoundingClientRect().top < 120) now = at; });
    entries.forEach((entry, at) => {
      if (at === now) entry.setAttribute("aria-current", "true"); else entry.removeAttribute("aria-current");
    });
  };
  if (entries.length) { document.addEventListener("scroll", markHeading, { passive: true }); markHeading(); }
  if (window.matchMedia("(max-width: 48rem)").matches) document.querySelector("nav.pages > details").open = false;
})();
