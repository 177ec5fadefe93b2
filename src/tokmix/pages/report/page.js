"use strict";
// A report: draws each chart in its place, and lets tables be sorted.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const spec = data[figure.dataset.chart];
    if (spec.maps) charts.maps(figure, spec.maps);
    else charts.chart(figure, spec);
  }

  const value = (row, at) => {
    const cell = row.children[at];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const order = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number stands last
    return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.querySelectorAll("th")];
    heads.forEach((head, at) =>
      head.querySelector("button")?.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a, at), value(b, at))));
      }),
    );
  }
}
