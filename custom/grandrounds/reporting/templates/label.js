// Answers leave the page in the file that the button saves, and in no other way.
const { cells, labels } = JSON.parse(document.getElementById("content").textContent);
const form = document.querySelector("form");
const [label, labelled] = ["label", "labelled"].map((name) => cells[0].indexOf(name));
const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

form.addEventListener("change", () => {
  form.elements.answered.value = [...new FormData(form)].length;
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const table = cells.map((row) => [...row]);
  for (const [row, answer] of new FormData(form)) {
    if (answer === "") continue;
    table[row][label] = labels[answer];
    table[row][labelled] = "1";
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([table.map((row) => row.map(quoted).join(",") + "\n").join("")], { type: "text/csv" }));
  link.download = "labelled.csv";
  link.click();
});
