// The theme puts each diagram into a closed shadow tree, which no stylesheet of the page reaches. So the drawing itself
// is changed: on a narrow screen it keeps a readable size, and arrowheads have the colour of their lines.
if (globalThis.mermaid) {
  const { initialize, render } = mermaid;
  const heads =
    '[id$="head"] path { fill: var(--md-mermaid-sequence-message-line-color); stroke: var(--md-mermaid-sequence-message-line-color); }' +
    ".arrowMarkerPath { fill: var(--md-mermaid-edge-color); stroke: none; }";
  mermaid.initialize = (config) => initialize({ ...config, themeCSS: `${config.themeCSS}${heads}` });
  mermaid.render = async (...diagram) => {
    const drawn = await render(...diagram);
    const svg = drawn.svg.replace(/max-width: ([\d.]+px)/, "$&; min-width: min(0.75 * $1, 48rem)");
    return { ...drawn, svg };
  };
}

// What the theme leaves out for readers with a screen reader.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // The corner of a table that has row names is no heading.
  for (const corner of document.querySelectorAll("th:empty")) {
    const cell = document.createElement("td");
    cell.className = "corner";
    corner.replaceWith(cell);
  }
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code ${at + 1}`));
});
