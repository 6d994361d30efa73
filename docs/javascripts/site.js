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
