// The page works without this: it sorts a table by the heading that is clicked, and opens what is folded where that is needed.
const SIZES = { kB: 1e3, MB: 1e6, GB: 1e9 };
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

// A number of a cell, its text, or null where it has no value: that is below all others.
function valueOf(cell) {
  const text = cell.textContent.trim();
  const [, number, size] = /^<? ?([-+]?\d[\d.]*) ?([kMG]B)?/.exec(text) ?? [];
  if (!cell.classList.contains("n") || text === "infinite") return text === "—" || text === "" ? null : text;
  return number === undefined ? null : Number(number) * (SIZES[size] ?? 1);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(table, bodies, column, order) {
  const sign = order === "descending" ? -1 : 1;
  for (const { body, rows } of bodies) {
    const keyed = rows.map((row) => ({ row, value: valueOf(row.cells[column]) }));
    const known = keyed.filter((entry) => entry.value !== null);
    const unknown = keyed.filter((entry) => entry.value === null);
    known.sort((a, b) => sign * compare(a.value, b.value));
    body.append(...(order === "none" ? rows : [...known, ...unknown].map((entry) => entry.row)));
  }
  for (const heading of table.tHead.rows[0].cells) heading.setAttribute("aria-sort", "none");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", order);
}

for (const table of document.querySelectorAll("table.sorted")) {
  const bodies = [...table.tBodies].map((body) => ({ body, rows: [...body.rows] }));
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, bodies, column, NEXT[heading.getAttribute("aria-sort") ?? "none"]));
  });
}

function unfold() {
  const named = document.getElementById(location.hash.replace("#", ""));
  const folded = named && (named.querySelector(":scope > details") ?? named.closest("details"));
  if (folded) folded.open = true;
}

addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((folded) => { folded.open = true; }));
unfold();
