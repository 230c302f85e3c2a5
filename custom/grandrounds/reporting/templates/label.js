// Answers leave the page in the file that the button saves, and in no other way.
const { images, labels } = JSON.parse(document.getElementById("content").textContent);
const form = document.querySelector("form");
const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

form.addEventListener("change", () => {
  form.elements.answered.value = [...new FormData(form)].length;
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const answers = [...new FormData(form)].filter(([, answer]) => answer !== "");
  const table = [["image", "label", "labelled"], ...answers.map(([row, answer]) => [images[row], labels[answer], "1"])];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([table.map((row) => row.map(quoted).join(",") + "\n").join("")], { type: "text/csv" }));
  link.download = "labelled.csv";
  link.click();
});
